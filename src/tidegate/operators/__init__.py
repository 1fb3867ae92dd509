"""The operators that tidegate brings along.

``build`` makes them from the plan; none of them knows barriers or channels.
"""
