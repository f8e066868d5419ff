"""A rank of `torch.distributed` with gloo, for the comparison with the collectives of sparkdl.

It runs in an environment of its own, without sparkdl: `python gloo_ranks.py RANK SIZE URL`. For
each line on stdin, the number of bytes and the number of calls, it prints the milliseconds of a
call, and of its CPU time.
"""

import sys
import time

import torch
from torch import distributed


def main() -> None:
    """Measure until stdin ends."""
    rank, size, url = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
    print("ready", flush=True)
    for line in sys.stdin:
        num_bytes, num_calls = map(int, line.split())
        array = torch.ones(num_bytes // 4)
        distributed.barrier()
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(num_calls):
            distributed.all_reduce(array)
        times = time.perf_counter() - begun, time.process_time() - used
        print(*(1e3 * seconds / num_calls for seconds in times), flush=True)


if __name__ == "__main__":
    main()
