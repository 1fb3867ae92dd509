"""Settings for all tests. Hypothesis gives the same examples every time, so that a red run means a change and not bad luck;
``HYPOTHESIS_PROFILE=search`` looks for new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The machine may be busy: how long an example takes says nothing.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
