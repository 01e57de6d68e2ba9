/* SPDX-License-Identifier: Apache-2.0 */
/* redset's Reed-Solomon with two parities over all ranks, of one file of each: lines "redset_rs2_encode MS", and
 * "redset_rs2_rebuild MS" after the files of the last two ranks are gone. The slowest rank counts.
 * usage: redset FOLDER BYTES REPETITIONS */
#include <mpi.h>

#define REDSET_ENABLE_MPI 1 /* Since 0.4 its header shows collective functions only so. */
#include <redset.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static double slowest_ms(double ms) {
  double all;
  MPI_Allreduce(&ms, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

static int write_file(const char *path, const char *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  int bad = file == NULL || fwrite(bytes, 1, count, file) != count;
  if (file != NULL) bad |= fclose(file) != 0;
  return bad;
}

int main(int argc, char **argv) {
  int rank, ranks, repetitions, i, bad = 0;
  char folder[4096], path[4200], command[4400];
  const char *files[1];
  char *bytes;
  size_t count;
  MPI_Init(&argc, &argv);
  if (argc != 4) return 2;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  count = strtoul(argv[2], NULL, 10);
  repetitions = atoi(argv[3]);
  snprintf(folder, sizeof folder, "%s/host%d", argv[1], rank);
  snprintf(path, sizeof path, "%s/share", folder);
  mkdir(folder, 0700);
  bytes = malloc(count);
  memset(bytes, rank + 1, count);
  bad |= redset_init() != REDSET_SUCCESS;
  for (i = 0; i <= repetitions && !bad; ++i) { /* The first one warms up. */
    redset set;
    char host[32], name[4200];
    double began;
    snprintf(host, sizeof host, "host%d", rank);
    snprintf(name, sizeof name, "%s/set", folder);
    files[0] = path;
    bytes[0] = (char)i;
    bad |= write_file(path, bytes, count);
    bad |= redset_create_rs(MPI_COMM_WORLD, host, ranks, 2, &set) != REDSET_SUCCESS;
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    bad |= redset_apply(1, files, name, set) != REDSET_SUCCESS;
    began = slowest_ms((MPI_Wtime() - began) * 1e3);
    if (rank == 0 && i > 0) printf("redset_rs2_encode %.4f\n", began);
    bad |= redset_delete(&set) != REDSET_SUCCESS;
    if (rank >= ranks - 2) {
      snprintf(command, sizeof command, "rm -rf '%s'", folder);
      bad |= system(command) != 0;
      mkdir(folder, 0700);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
    bad |= redset_recover(MPI_COMM_WORLD, name, &set) != REDSET_SUCCESS;
    began = slowest_ms((MPI_Wtime() - began) * 1e3);
    if (rank == 0 && i > 0) printf("redset_rs2_rebuild %.4f\n", began);
    bad |= redset_unapply(name, set) != REDSET_SUCCESS;
    bad |= redset_delete(&set) != REDSET_SUCCESS;
  }
  redset_finalize();
  MPI_Finalize();
  if (rank == 0 && !bad) printf("done\n");
  return bad;
}
