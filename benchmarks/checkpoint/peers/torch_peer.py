# SPDX-License-Identifier: Apache-2.0
"""How long torch.distributed.checkpoint's async_save stops ranks that all hold the same tensors: lines "dcp_async_blocked MS"
(with one rank; "dcp_async_blocked_4_ranks" with four: the slowest one's). And torch.save of one rank: "torch_save MS".

usage: torch_peer.py FOLDER BYTES TENSORS REPETITIONS RANKS
"""
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing


def rank_of(rank, folder, count, tensors, repetitions, ranks):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    generator = torch.Generator().manual_seed(1)
    state = {f"layer{i}.kernel": torch.randint(0, 255, (count // tensors,), dtype=torch.uint8, generator=generator)
             for i in range(tensors)}
    subject = "dcp_async_blocked" if ranks == 1 else f"dcp_async_blocked_{ranks}_ranks"
    for i in range(repetitions + 1):   # The first one warms up.
        for tensor in state.values():
            tensor[::1 << 19] = i
        dist.barrier()
        began = time.perf_counter()
        saved = dcp.async_save(state, checkpoint_id=f"{folder}/dcp{i}")
        took = torch.tensor([(time.perf_counter() - began) * 1e3])
        saved.result()
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if rank == 0:
            if i > 0:
                print(subject, took.item(), flush=True)
            shutil.rmtree(f"{folder}/dcp{i}")
        if ranks == 1:
            began = time.perf_counter()
            torch.save(state, f"{folder}/file.pt")
            if i > 0:
                print("torch_save", (time.perf_counter() - began) * 1e3, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder, (count, tensors, repetitions, ranks) = sys.argv[1], map(int, sys.argv[2:])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(rank_of, (folder, count, tensors, repetitions, ranks), nprocs=ranks)
    print("done")


if __name__ == "__main__":
    main()
