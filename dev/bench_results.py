"""What a bench measures, how much of it, and what came of it."""

from dataclasses import dataclass, field

TURNS_IN_FLIGHT = 500
SLOW_MODEL_MS = 2000.0
TOKENS = (20, 520)  # of a short and a long streamed answer; the difference is what tokens cost


@dataclass(frozen=True)
class Measured:
    """Some turns and what they cost. CPU figures are ms per answered turn, None where the system does not tell."""

    turns: int
    errors: int
    error_kinds: dict[str, int]
    not_stored: int  # answered, but without its two messages
    half_stored: int  # conversations holding anything but whole turns
    seconds: float
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    service_cpu_ms: float | None
    database_cpu_ms: float | None
    model_cpu_ms: float | None
    load_cpu_ms: float
    per_turn: dict[str, float]  # what `Stage.counters` counts

    @property
    def wrong(self) -> int:
        return self.errors + self.not_stored + self.half_stored


@dataclass(frozen=True)
class Goal:
    text: str
    figure: str
    met: bool | None  # None: not measured here


@dataclass
class Results:
    """What was measured; a part that did not run is empty."""

    machine: dict[str, str | int | float]
    load: dict[int, list[Measured]] = field(default_factory=dict)  # by connections, one per round
    statements: dict[str, Measured] = field(default_factory=dict)  # of a first turn and of a later one
    growth: dict[int, list[Measured]] = field(default_factory=dict)  # by messages already stored, one per round
    streaming: dict[str, float] = field(default_factory=dict)  # us per token, by how they arrive
    streamed: list[Measured] = field(default_factory=list)
    inflight: Measured | None = None
    inflight_service: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # parts that could not be measured, and why

    def all_measured(self) -> list[Measured]:
        rounds = [one for by in (self.load, self.growth) for several in by.values() for one in several]
        return [*rounds, *self.statements.values(), *self.streamed, *([self.inflight] if self.inflight else [])]
