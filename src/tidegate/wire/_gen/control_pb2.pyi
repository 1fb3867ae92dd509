from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Attendant(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE: _ClassVar[Attendant]
    DRIVER: _ClassVar[Attendant]
    OPERATOR: _ClassVar[Attendant]

class CauseKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNKNOWN: _ClassVar[CauseKind]
    CAUSE_USER_FUNCTION: _ClassVar[CauseKind]
    CAUSE_DEFECT: _ClassVar[CauseKind]
    CAUSE_TRANSIENT: _ClassVar[CauseKind]
    CAUSE_PEER_LOST: _ClassVar[CauseKind]
    CAUSE_LOST: _ClassVar[CauseKind]
    CAUSE_STALLED: _ClassVar[CauseKind]
    CAUSE_NOT_JOINED: _ClassVar[CauseKind]
    CAUSE_SETUP: _ClassVar[CauseKind]
    CAUSE_STORAGE_UNAVAILABLE: _ClassVar[CauseKind]
    CAUSE_STORAGE_REFUSED: _ClassVar[CauseKind]

class SignalStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIGNAL_UNKNOWN: _ClassVar[SignalStep]
    SIGNAL_FETCH: _ClassVar[SignalStep]
    SIGNAL_EMIT: _ClassVar[SignalStep]
    SIGNAL_SEEN: _ClassVar[SignalStep]
    SIGNAL_INSTANT: _ClassVar[SignalStep]
NODE: Attendant
DRIVER: Attendant
OPERATOR: Attendant
CAUSE_UNKNOWN: CauseKind
CAUSE_USER_FUNCTION: CauseKind
CAUSE_DEFECT: CauseKind
CAUSE_TRANSIENT: CauseKind
CAUSE_PEER_LOST: CauseKind
CAUSE_LOST: CauseKind
CAUSE_STALLED: CauseKind
CAUSE_NOT_JOINED: CauseKind
CAUSE_SETUP: CauseKind
CAUSE_STORAGE_UNAVAILABLE: CauseKind
CAUSE_STORAGE_REFUSED: CauseKind
SIGNAL_UNKNOWN: SignalStep
SIGNAL_FETCH: SignalStep
SIGNAL_EMIT: SignalStep
SIGNAL_SEEN: SignalStep
SIGNAL_INSTANT: SignalStep

class NodeMessage(_message.Message):
    __slots__ = ("term", "gang", "hello", "injection_ack", "prepared", "declined", "drained", "progress", "failed", "stopped", "heartbeat", "signal", "call", "reply", "commit_ack")
    TERM_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    INJECTION_ACK_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ACK_FIELD_NUMBER: _ClassVar[int]
    term: int
    gang: int
    hello: Hello
    injection_ack: InjectionAck
    prepared: Prepared
    declined: Declined
    drained: Drained
    progress: Progress
    failed: Failed
    stopped: Stopped
    heartbeat: Heartbeat
    signal: SignalProgress
    call: Call
    reply: Reply
    commit_ack: CommitAck
    def __init__(self, term: _Optional[int] = ..., gang: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., injection_ack: _Optional[_Union[InjectionAck, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., declined: _Optional[_Union[Declined, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., signal: _Optional[_Union[SignalProgress, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., commit_ack: _Optional[_Union[CommitAck, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "gang", "address", "pid", "host", "unable", "attendant", "rejoins", "draining", "signalled")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    UNABLE_FIELD_NUMBER: _ClassVar[int]
    ATTENDANT_FIELD_NUMBER: _ClassVar[int]
    REJOINS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SIGNALLED_FIELD_NUMBER: _ClassVar[int]
    node: int
    gang: int
    address: str
    pid: int
    host: str
    unable: bool
    attendant: Attendant
    rejoins: bool
    draining: bool
    signalled: bool
    def __init__(self, node: _Optional[int] = ..., gang: _Optional[int] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., unable: _Optional[bool] = ..., attendant: _Optional[_Union[Attendant, str]] = ..., rejoins: _Optional[bool] = ..., draining: _Optional[bool] = ..., signalled: _Optional[bool] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("number", "verb", "json")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    number: int
    verb: str
    json: bytes
    def __init__(self, number: _Optional[int] = ..., verb: _Optional[str] = ..., json: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("number", "json", "error_type", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    json: bytes
    error_type: str
    error: str
    def __init__(self, number: _Optional[int] = ..., json: _Optional[bytes] = ..., error_type: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Adopted(_message.Message):
    __slots__ = ("epoch", "checkpoint_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    checkpoint_id: int
    def __init__(self, epoch: _Optional[int] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class InjectionAck(_message.Message):
    __slots__ = ("checkpoint_id", "gang", "term", "source_count")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    gang: int
    term: int
    source_count: int
    def __init__(self, checkpoint_id: _Optional[int] = ..., gang: _Optional[int] = ..., term: _Optional[int] = ..., source_count: _Optional[int] = ...) -> None: ...

class CommitAck(_message.Message):
    __slots__ = ("checkpoint_id",)
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    def __init__(self, checkpoint_id: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class Declined(_message.Message):
    __slots__ = ("checkpoint_id", "gang", "reason")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    gang: int
    reason: str
    def __init__(self, checkpoint_id: _Optional[int] = ..., gang: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("gang",)
    GANG_FIELD_NUMBER: _ClassVar[int]
    gang: int
    def __init__(self, gang: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("gang", "error_type", "message", "traceback", "kind", "where")
    GANG_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    gang: int
    error_type: str
    message: str
    traceback: str
    kind: CauseKind
    where: str
    def __init__(self, gang: _Optional[int] = ..., error_type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., kind: _Optional[_Union[CauseKind, str]] = ..., where: _Optional[str] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ("gang",)
    GANG_FIELD_NUMBER: _ClassVar[int]
    gang: int
    def __init__(self, gang: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("doing",)
    DOING_FIELD_NUMBER: _ClassVar[int]
    doing: _containers.RepeatedCompositeFieldContainer[Doing]
    def __init__(self, doing: _Optional[_Iterable[_Union[Doing, _Mapping]]] = ...) -> None: ...

class Doing(_message.Message):
    __slots__ = ("what", "for_ms", "running")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    what: str
    for_ms: int
    running: bool
    def __init__(self, what: _Optional[str] = ..., for_ms: _Optional[int] = ..., running: _Optional[bool] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("term", "gang", "welcome", "started", "inject", "promote", "abort", "committed", "finalize", "stop", "heartbeat", "signal", "call", "reply", "adopted")
    TERM_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    INJECT_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FINALIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    term: int
    gang: int
    welcome: Welcome
    started: Started
    inject: Inject
    promote: Promote
    abort: Abort
    committed: Committed
    finalize: Finalize
    stop: Stop
    heartbeat: Heartbeat
    signal: Signal
    call: Call
    reply: Reply
    adopted: Adopted
    def __init__(self, term: _Optional[int] = ..., gang: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., inject: _Optional[_Union[Inject, _Mapping]] = ..., promote: _Optional[_Union[Promote, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., finalize: _Optional[_Union[Finalize, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., signal: _Optional[_Union[Signal, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., adopted: _Optional[_Union[Adopted, _Mapping]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: int
    address: str
    def __init__(self, node: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("gang", "peers", "restore")
    GANG_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    gang: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    restore: bytes
    def __init__(self, gang: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., restore: _Optional[bytes] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("term", "checkpoint_id", "epoch", "parent_epoch", "age_ms", "timeout_ms", "alignment_timeout_ms", "aligned", "compacts")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ALIGNED_FIELD_NUMBER: _ClassVar[int]
    COMPACTS_FIELD_NUMBER: _ClassVar[int]
    term: int
    checkpoint_id: int
    epoch: int
    parent_epoch: int
    age_ms: int
    timeout_ms: int
    alignment_timeout_ms: int
    aligned: bool
    compacts: bool
    def __init__(self, term: _Optional[int] = ..., checkpoint_id: _Optional[int] = ..., epoch: _Optional[int] = ..., parent_epoch: _Optional[int] = ..., age_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., alignment_timeout_ms: _Optional[int] = ..., aligned: _Optional[bool] = ..., compacts: _Optional[bool] = ...) -> None: ...

class Inject(_message.Message):
    __slots__ = ("term", "checkpoint_id", "epoch", "unaligned")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNALIGNED_FIELD_NUMBER: _ClassVar[int]
    term: int
    checkpoint_id: int
    epoch: int
    unaligned: bool
    def __init__(self, term: _Optional[int] = ..., checkpoint_id: _Optional[int] = ..., epoch: _Optional[int] = ..., unaligned: _Optional[bool] = ...) -> None: ...

class Promote(_message.Message):
    __slots__ = ("checkpoint_id",)
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    def __init__(self, checkpoint_id: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("checkpoint_id", "reason")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    reason: str
    def __init__(self, checkpoint_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("epoch", "checkpoint_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    checkpoint_id: int
    def __init__(self, epoch: _Optional[int] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class Finalize(_message.Message):
    __slots__ = ("term", "checkpoint_id", "epoch")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    term: int
    checkpoint_id: int
    epoch: int
    def __init__(self, term: _Optional[int] = ..., checkpoint_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("step", "frame")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    step: SignalStep
    frame: bytes
    def __init__(self, step: _Optional[_Union[SignalStep, str]] = ..., frame: _Optional[bytes] = ...) -> None: ...

class SignalProgress(_message.Message):
    __slots__ = ("id", "step", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    step: SignalStep
    error: str
    def __init__(self, id: _Optional[int] = ..., step: _Optional[_Union[SignalStep, str]] = ..., error: _Optional[str] = ...) -> None: ...
