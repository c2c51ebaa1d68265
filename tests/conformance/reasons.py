"""Tests of torch that the backend "coarse" cannot pass, and why."""

_MONITORED = "torch.distributed.monitored_barrier refuses every backend but Gloo; here barrier names the ranks"

REASONS: dict[str, str] = {
    "test_get_backend": "wants the backend's name to be gloo",
    "test_monitored_barrier_allreduce_hang": _MONITORED,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _MONITORED,
    "test_monitored_barrier_failure_order": _MONITORED,
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": "wants Gloo's words for a monitored barrier without any time",
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
    "test_monitored_barrier_wait_all_ranks": _MONITORED,
}
