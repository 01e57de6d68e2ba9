/* SPDX-License-Identifier: Apache-2.0 */
/* How long VELOC_Checkpoint_begin, _mem and _end stop a program of one rank: lines "veloc_blocked MS".
 * usage: veloc CONFIG BYTES REGIONS REPETITIONS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <veloc.h>

static double now_ms(void) { return MPI_Wtime() * 1e3; }

int main(int argc, char **argv) {
  int provided, repetitions, i, bad = 0;
  size_t regions, region_bytes, r;
  unsigned char **memory;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (argc != 5) return 2;
  regions = strtoul(argv[3], NULL, 10);
  region_bytes = strtoul(argv[2], NULL, 10) / regions;
  repetitions = atoi(argv[4]);
  if (VELOC_Init(MPI_COMM_WORLD, argv[1]) != VELOC_SUCCESS) return 1;
  memory = calloc(regions, sizeof *memory);
  for (r = 0; r < regions; ++r) {
    memory[r] = malloc(region_bytes);
    memset(memory[r], (int)r, region_bytes);
    bad |= VELOC_Mem_protect((int)r, memory[r], region_bytes, 1) != VELOC_SUCCESS;
  }
  for (i = 0; i <= repetitions && !bad; ++i) { /* The first one warms up. */
    double began;
    for (r = 0; r < regions; ++r) {
      size_t at;
      for (at = 0; at < region_bytes; at += 1 << 19) memory[r][at] = (unsigned char)(i + 1);
    }
    began = now_ms();
    bad |= VELOC_Checkpoint_begin("blocked", i + 1) != VELOC_SUCCESS;
    bad |= VELOC_Checkpoint_mem() != VELOC_SUCCESS;
    bad |= VELOC_Checkpoint_end(1) != VELOC_SUCCESS;
    if (i > 0) printf("veloc_blocked %.4f\n", now_ms() - began);
    bad |= VELOC_Checkpoint_wait() != VELOC_SUCCESS;
  }
  bad |= VELOC_Finalize(1) != VELOC_SUCCESS;
  MPI_Finalize();
  if (!bad) printf("done\n");
  return bad;
}
