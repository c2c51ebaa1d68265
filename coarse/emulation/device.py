"""Memory device in emulated time: steps of its features take the time of their costs, in order."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from coarse.emulation.envelope import FabricPort
from coarse.emulation.mailbox import EmulatedMailbox
from coarse.emulation.transport import EmulatedTransport
from coarse.errors import UnsupportedError
from coarse.protocol import override
from coarse.protocol.codec import feature_of, is_of_feature
from coarse.protocol.costs import Cost, Way, cost_of
from coarse.protocol.features import costs_of
from coarse.protocol.records import Record
from coarse.proxy.costs import INSTRUCTION_COSTS
from coarse.proxy.device import Device, DeviceBytes, DeviceDriver, Executor
from coarse.proxy.feature import FeatureMachine
from coarse.proxy.instructions import Instruction
from coarse.proxy.protocol import ProxyProtocol
from coarse.proxy.service import LiveBuffers, ProxyService


class _Step(NamedTuple):
    """Instruction that waits for its turn."""

    feature: str
    instruction: Instruction
    context: object
    """State in which it is carried out; see FeatureExecutor."""


class EmulatedDevice(Device):
    """Device that carries out instructions of features in their order, each once its time is over."""

    def __init__(
        self, protocol: ProxyProtocol, driver: DeviceDriver, memory: DeviceBytes, box: EmulatedMailbox,
        transport: EmulatedTransport,
    ) -> None:  # fmt: skip
        super().__init__(protocol, driver, memory)
        self._box = box
        self._transport = transport
        self._features: dict[str, tuple[FeatureMachine, Executor]] = {}
        self._feature_of: dict[type, str] = {}
        """Name of the feature, by class of an instruction."""
        self._steps: deque[_Step] = deque()
        self._is_busy = False
        """True while a step's time passes."""
        self._is_within = False
        """True while a step is being carried out: the steps that follow from it come before all others."""

    @override
    def add_feature(
        self, name: str, machine: FeatureMachine, executor: Executor, carriers: Mapping[type, Callable[[Any], None]]
    ) -> None:
        super().add_feature(name, machine, executor, carriers)
        self._features[name] = machine, executor
        self._feature_of.update(dict.fromkeys(carriers, name))

    @override
    def on_record(self, record: Record) -> None:
        steps = self.protocol.on_record(record)
        if is_of_feature(record):
            self.carry_out_of(feature_of(record), steps)
        else:
            self.carry_out(steps)

    def carry_out(self, instructions: list[Instruction]) -> None:
        """Carry out instructions; those of a feature wait for their turn.

        They may be a feature's answer to an event of the kernel, such as a leave.
        """
        feature = next(filter(None, (self._feature_of.get(type(each)) for each in instructions)), None)
        if feature is None:
            super().carry_out(instructions)
        else:
            self.carry_out_of(feature, instructions)

    def carry_out_of(self, feature: str, steps: list[Instruction]) -> None:
        """Carry out a feature's steps; a step's time begins once all before it are done.

        Raises:
            UnsupportedError: no cost is stated of a step, or one that emulation has no way for.
        """
        if feature not in self._features:  # it has no executor, and so no instructions of its own
            self.carry_out(steps)
            return
        context = self._features[feature][1].context
        waiting = [_Step(feature, step, context) for step in steps]
        if self._is_within:
            self._steps.extendleft(reversed(waiting))
            return
        self._steps.extend(waiting)
        self._go_on()

    def _go_on(self) -> None:
        while self._steps and not self._is_busy:
            step = self._steps.popleft()
            cost = self._cost_of(step)
            if cost.way is Way.ADDS and (cost.amount or cost.fetched):
                self._is_busy = True
                self._fetch(step, cost)
            else:
                self._carry_out_one(step, cost)

    def _cost_of(self, step: _Step) -> Cost:
        if type(step.instruction) in INSTRUCTION_COSTS:
            return cost_of(INSTRUCTION_COSTS, step.instruction, 0)
        machine, _ = self._features[step.feature]
        cost = cost_of(costs_of(step.feature), step.instruction, machine.sizes(step.instruction))
        if cost.way not in (Way.NOTHING, Way.ADDS, Way.SENDS):
            kind = type(step.instruction).__name__
            raise UnsupportedError(
                f"memory device {self.protocol.device}: {kind} of the feature {step.feature!r} {cost.way} "
                f"{cost.amount} bytes, which has no emulated time; leave out --machine, or predict the mode (coarse "
                "predict --modes)"
            )
        return cost

    def _fetch(self, step: _Step, cost: Cost) -> None:
        """Read the bytes that lie on other devices, and then add."""
        own, left = self.protocol.device, [len(cost.fetched)]

        def add(due_s: float) -> None:
            self._box.spend(FabricPort.ADDER, cost.amount, own, own, partial(self._done, step, cost), at_s=due_s)

        def fetched(due_s: float) -> None:
            left[0] -= 1
            if not left[0]:
                add(due_s)

        for device, nbytes in cost.fetched:
            self._box.spend(FabricPort.FETCH, nbytes, device, own, fetched)
        if not cost.fetched:
            add(self._box.at_s())

    def _done(self, step: _Step, cost: Cost, _: float) -> None:
        self._is_busy = False
        self._carry_out_one(step, cost)
        self._go_on()

    def _carry_out_one(self, step: _Step, cost: Cost) -> None:
        self._features[step.feature][1].context = step.context
        self._is_within = True
        try:
            if cost.way is Way.SENDS:
                with self._transport.charging(cost.amount):
                    super().carry_out([step.instruction])
            else:
                super().carry_out([step.instruction])
        finally:
            self._is_within = False


class EmulatedService(ProxyService):
    """Service whose device is an EmulatedDevice."""

    def _make_device(self, protocol: ProxyProtocol, rings: LiveBuffers) -> Device:
        assert isinstance(self._mailbox, EmulatedMailbox)
        assert isinstance(self._transport, EmulatedTransport)
        return EmulatedDevice(protocol, self, rings, self._mailbox, self._transport)
