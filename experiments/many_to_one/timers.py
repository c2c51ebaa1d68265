# Pure: no MPI, threads, clock or environment.
"""Timers of senders: after how long a silence they ask, or send again."""

from collections.abc import Callable, Sequence

from coarse.luwu.many_to_one.packets import Beat, Data, Instruction, Probe
from coarse.luwu.many_to_one.round_trips import RoundTrips
from coarse.luwu.many_to_one.sender import Sender
from coarse.simulation.engine import Engine
from experiments.many_to_one.go_back_n import GoBackSender

Do = Callable[[Sequence[Instruction]], None]
"""Carries out what a machine wants."""


class Timer:
    """Fires where nothing was heard for too long while a sender waits."""

    def __init__(self, engine: Engine, sender: Sender | GoBackSender, do: Do) -> None:
        self._engine = engine
        self._sender = sender
        self._do = do
        self._deadline_s = 0.0
        self._is_set = False

    def on_sent(self, message: Data | Probe) -> None:
        """The sender has sent something."""
        self.run()

    def run(self) -> None:
        """Run from now on, if the sender waits and it does not run."""
        if not self._is_set and self._sender.is_waiting:
            self._deadline_s = self._engine.now_s + self._patience_s()
            self._set()

    def on_beat(self, beat: Beat) -> None:
        """The sender hears a heartbeat."""
        self._deadline_s = self._engine.now_s + self._patience_s()

    def _patience_s(self) -> float:
        raise NotImplementedError

    def _on_silence(self) -> None:
        """The deadline passed."""

    def _set(self) -> None:
        self._is_set = True
        self._engine.at(max(self._deadline_s, self._engine.now_s), self._look)

    def _look(self) -> None:
        self._is_set = False
        if not self._sender.is_waiting:
            return
        if self._engine.now_s >= self._deadline_s:
            self._on_silence()
            self._deadline_s = self._engine.now_s + self._patience_s()
            self._do(self._sender.on_timer())
        if not self._is_set:
            self._set()


class RoundTripTimer(Timer):
    """As long as answers took before."""

    def __init__(self, engine: Engine, sender: Sender, do: Do, first_s: float, least_s: float) -> None:
        """See RoundTrips."""
        super().__init__(engine, sender, do)
        self._trips = RoundTrips(first_s, least_s=least_s)

    def on_sent(self, message: Data | Probe) -> None:
        """See Timer."""
        self._trips.on_sent(message.stamp, self._engine.now_s)
        super().on_sent(message)

    def on_beat(self, beat: Beat) -> None:
        """See Timer."""
        self._trips.on_echo(beat.echo, self._engine.now_s)
        super().on_beat(beat)

    def _patience_s(self) -> float:
        return self._trips.timeout_s

    def _on_silence(self) -> None:
        self._trips.on_silence()


class SilenceTimer(Timer):
    """Always as long; heartbeats that raise no Ack don't count."""

    def __init__(self, engine: Engine, sender: GoBackSender, do: Do, silence_s: float) -> None:
        super().__init__(engine, sender, do)
        self._silence_s = silence_s

    def on_beat(self, beat: Beat) -> None:
        """See Timer."""
        if beat.ack > self._sender.ack:
            super().on_beat(beat)

    def _patience_s(self) -> float:
        return self._silence_s
