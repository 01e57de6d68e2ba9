/* SPDX-License-Identifier: Apache-2.0 */
/* A hot rod that cools down, in pieces at all ranks, checkpointed with VELOC's functions: what scripts/prove_veloc.sh
 * compiles where nobody names VELOC's own programs. WAY is 1: regions of memory; 2: a file; 3: regions, and the last
 * rank ends the job in the middle of a first run, and a second one cleans up.
 * usage: heat MEBIBYTES CONFIG */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "include/veloc.h"

#define STEPS 600
#define STEPS_BETWEEN 200
#define STEPS_OUT 50
#define NAME "rod"

static int rank, ranks, step;
static int cells; /* Of this rank; one more at each end is the neighbour's. */
static double *now, *next;

static void fail_if(int bad, const char *what) {
  if (!bad) return;
  fprintf(stderr, "rank %d: %s failed\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

static double move_heat(void) {
  const int before = rank > 0 ? rank - 1 : MPI_PROC_NULL, after = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
  double most = 0, all;
  double *swapped = now;
  int i;
  MPI_Sendrecv(now + 1, 1, MPI_DOUBLE, before, 0, now + cells + 1, 1, MPI_DOUBLE, after, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(now + cells, 1, MPI_DOUBLE, after, 1, now, 1, MPI_DOUBLE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (i = 1; i <= cells; ++i) {
    next[i] = now[i] + 0.25 * (now[i - 1] - 2 * now[i] + now[i + 1]);
    if (fabs(next[i] - now[i]) > most) most = fabs(next[i] - now[i]);
  }
  for (i = 1; i <= cells; ++i) swapped[i] = next[i];
  MPI_Allreduce(&most, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

#if WAY == 2
/* Reads or writes the checkpoint's file. */
static int exchange(const char *how) {
  char path[VELOC_MAX_NAME];
  const size_t count = (size_t)cells + 2;
  FILE *file;
  int good;
  fail_if(VELOC_Route_file("rod.dat", path) != VELOC_SUCCESS, "VELOC_Route_file");
  file = fopen(path, how);
  if (file == NULL) return 0;
  if (how[0] == 'r') {
    good = fread(&step, sizeof step, 1, file) == 1 && fread(now, sizeof *now, count, file) == count;
  } else {
    good = fwrite(&step, sizeof step, 1, file) == 1 && fwrite(now, sizeof *now, count, file) == count;
  }
  return fclose(file) == 0 && good;
}
#endif

static void restart(int version) {
#if WAY == 2
  fail_if(VELOC_Restart_begin(NAME, version) != VELOC_SUCCESS, "VELOC_Restart_begin");
  fail_if(VELOC_Restart_end(exchange("rb")) != VELOC_SUCCESS || step != version, "VELOC_Restart_end");
#else
  fail_if(VELOC_Restart(NAME, version) != VELOC_SUCCESS || step != version, "VELOC_Restart");
#endif
  if (rank == 0) printf("Restart from iteration %d\n", version);
}

static void checkpoint(void) {
#if WAY == 2
  fail_if(VELOC_Checkpoint_wait() != VELOC_SUCCESS, "VELOC_Checkpoint_wait");
  fail_if(VELOC_Checkpoint_begin(NAME, step) != VELOC_SUCCESS, "VELOC_Checkpoint_begin");
  fail_if(VELOC_Checkpoint_end(exchange("wb")) != VELOC_SUCCESS, "VELOC_Checkpoint_end");
#else
  fail_if(VELOC_Checkpoint(NAME, step) != VELOC_SUCCESS, "VELOC_Checkpoint");
#endif
}

int main(int argc, char **argv) {
  int version;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  fail_if(argc != 3 || VELOC_Init(MPI_COMM_WORLD, argv[2]) != VELOC_SUCCESS, "VELOC_Init");
  cells = atoi(argv[1]) * 1024 * (1024 / (int)sizeof *now) / 2;
  now = calloc((size_t)cells + 2, sizeof *now);
  next = calloc((size_t)cells + 2, sizeof *next);
  fail_if(now == NULL || next == NULL, "calloc");
  if (rank == 0) now[1] = 1000;
#if WAY != 2
  fail_if(VELOC_Mem_protect(0, &step, 1, sizeof step) != VELOC_SUCCESS, "VELOC_Mem_protect");
  fail_if(VELOC_Mem_protect(1, now, (size_t)cells + 2, sizeof *now) != VELOC_SUCCESS, "VELOC_Mem_protect");
#endif
  version = VELOC_Restart_test(NAME, 0);
  if (version > 0) restart(version);
  while (step < STEPS) {
    const double change = move_heat();
    if (step % STEPS_OUT == 0 && rank == 0) printf("Step : %d, error = %.9f\n", step, change);
    ++step;
    if (step % STEPS_BETWEEN == 0) checkpoint();
#if WAY == 3
    /* What is aborted has a checkpoint: a slow disk may still write it here. */
    if (step == STEPS / 2) {
      fail_if(VELOC_Checkpoint_wait() != VELOC_SUCCESS, "VELOC_Checkpoint_wait");
      MPI_Barrier(MPI_COMM_WORLD);
    }
    if (version <= 0 && step > STEPS / 2 && rank == ranks - 1) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  }
  fail_if(VELOC_Checkpoint_wait() != VELOC_SUCCESS, "VELOC_Checkpoint_wait");
#if WAY == 3
  fail_if(VELOC_Cleanup(NAME) != VELOC_SUCCESS, "VELOC_Cleanup");
#endif
  fail_if(VELOC_Finalize(WAY == 3) != VELOC_SUCCESS, "VELOC_Finalize");
  if (rank == 0) printf("Execution finished\n");
  MPI_Finalize();
  return 0;
}
