"""Sum the numbers of torchrun's workers on memory devices that coarse starts beside them."""

import coarse


def main() -> None:
    coarse.init()
    import torch

    import coarse.torch as ct

    found = ct.push_pull(torch.full((100_000,), coarse.rank() + 1.0), "x", op=coarse.Sum)
    assert (found == found[0]).all()
    print(f"worker {coarse.rank()} of {coarse.size()}: {found[0].item()}", flush=True)


if __name__ == "__main__":
    main()
