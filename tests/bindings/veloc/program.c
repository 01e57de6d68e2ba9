/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a program that checkpoints through VELOC's functions; in C, as such programs are. What it does stands on
 * its command line: CONFIG WORD... Each word prints a line "RANK WORD RESULT".
 *
 *   single:ID          VELOC_Init_single() instead of VELOC_Init(); the first word, if at all
 *   region:ID:BYTES    protects memory; with BYTES+ each rank has as many more as its number
 *   named:ID:BYTES:NAME
 *   many:COUNT:BYTES   protects so many regions more, from id 1000, in one block; block: the byte that all of it has
 *   fill:VALUE         every byte of all memory becomes VALUE plus the rank's number
 *   checkpoint:NAME:V  begin:NAME:V  some:ID  rest:ID  mem  end:0|1  wait  finished
 *   write:VALUE        writes the checkpoint's file; read: the file's first byte
 *   test:NAME:V  restart:NAME:V  restart_begin:NAME:V  recover  recover_some:ID  size:ID  restart_end
 *   same:ID            the byte that all of a region has; -1 when they differ
 *   cleanup:NAME  finalize:0|1
 *   kill:RANK          that rank ends by SIGKILL
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bindings/veloc/veloc.h"

#define REGIONS 16

static unsigned char *memory[REGIONS];
static size_t bytes_of[REGIONS];
static unsigned char *block;
static size_t block_bytes;
static int rank;

static int protect(int id, const char *bytes, const char *name) {
  char *end;
  size_t count = strtoul(bytes, &end, 10);
  if (*end == '+') count += (size_t)rank;
  free(memory[id]);
  memory[id] = calloc(count + 1, 1);
  bytes_of[id] = count;
  return name == NULL ? VELOC_Mem_protect(id, memory[id], count, 1)
                      : VELOC_Region_protect(id, memory[id], count, 1, name);
}

static int many(int count, size_t bytes) {
  int i, result = VELOC_SUCCESS;
  block_bytes = (size_t)count * bytes;
  block = calloc(block_bytes, 1);
  for (i = 0; i < count && result == VELOC_SUCCESS; ++i)
    result = VELOC_Mem_protect(1000 + i, block + (size_t)i * bytes, bytes, 1);
  return result;
}

static int same_block(void) {
  size_t i;
  for (i = 1; i < block_bytes; ++i)
    if (block[i] != block[0]) return -1;
  return block[0];
}

static int same(int id) {
  size_t i;
  for (i = 1; i < bytes_of[id]; ++i)
    if (memory[id][i] != memory[id][0]) return -1;
  return memory[id][0];
}

static int file(const char *value) {
  char path[VELOC_MAX_NAME];
  int byte = -1;
  FILE *stream;
  if (VELOC_Route_file("state.dat", path) != VELOC_SUCCESS) return VELOC_FAILURE;
  stream = fopen(path, value != NULL ? "wb" : "rb");
  if (stream == NULL) return VELOC_FAILURE;
  if (value != NULL) {
    int i;
    for (i = 0; i < 1000 + rank; ++i) fputc(atoi(value) + rank, stream);
    byte = VELOC_SUCCESS;
  } else {
    byte = fgetc(stream);
  }
  fclose(stream);
  return byte;
}

static int act(char *word) {
  char *parts[4] = {word, "", "", NULL};
  int count = 1, id, i;
  for (; count < 4 && (word = strchr(word, ':')) != NULL; ++count) {
    *word++ = '\0';
    parts[count] = word;
  }
  id = atoi(parts[1]);
  const char *what = parts[0];
  if (strcmp(what, "region") == 0) return protect(id, parts[2], NULL);
  if (strcmp(what, "named") == 0) return protect(id, parts[2], parts[3]);
  if (strcmp(what, "many") == 0) return many(id, strtoul(parts[2], NULL, 10));
  if (strcmp(what, "block") == 0) return same_block();
  if (strcmp(what, "fill") == 0) {
    for (i = 0; i < REGIONS; ++i)
      if (memory[i] != NULL) memset(memory[i], id + rank, bytes_of[i]);
    if (block != NULL) memset(block, id + rank, block_bytes);
    return 0;
  }
  if (strcmp(what, "checkpoint") == 0) return VELOC_Checkpoint(parts[1], atoi(parts[2]));
  if (strcmp(what, "begin") == 0) return VELOC_Checkpoint_begin(parts[1], atoi(parts[2]));
  if (strcmp(what, "some") == 0) return VELOC_Checkpoint_selective(VELOC_CKPT_SOME, &id, 1);
  if (strcmp(what, "rest") == 0) return VELOC_Checkpoint_selective(VELOC_CKPT_REST, &id, 1);
  if (strcmp(what, "mem") == 0) return VELOC_Checkpoint_mem();
  if (strcmp(what, "end") == 0) return VELOC_Checkpoint_end(id);
  if (strcmp(what, "wait") == 0) return VELOC_Checkpoint_wait();
  if (strcmp(what, "finished") == 0) return VELOC_Checkpoint_finished();
  if (strcmp(what, "write") == 0) return file(parts[1]);
  if (strcmp(what, "read") == 0) return file(NULL);
  if (strcmp(what, "test") == 0) return VELOC_Restart_test(parts[1], atoi(parts[2]));
  if (strcmp(what, "restart") == 0) return VELOC_Restart(parts[1], atoi(parts[2]));
  if (strcmp(what, "restart_begin") == 0) return VELOC_Restart_begin(parts[1], atoi(parts[2]));
  if (strcmp(what, "recover") == 0) return VELOC_Recover_mem();
  if (strcmp(what, "recover_some") == 0) return VELOC_Recover_selective(VELOC_RECOVER_SOME, &id, 1);
  if (strcmp(what, "size") == 0) return VELOC_Recover_size(id);
  if (strcmp(what, "restart_end") == 0) return VELOC_Restart_end(1);
  if (strcmp(what, "same") == 0) return same(id);
  if (strcmp(what, "cleanup") == 0) return VELOC_Cleanup(parts[1]);
  if (strcmp(what, "finalize") == 0) return VELOC_Finalize(id);
  if (strcmp(what, "kill") == 0) {
    if (id == rank) kill(getpid(), SIGKILL);
    sleep(20); /* Until the launcher ends it, too. */
    return 0;
  }
  fprintf(stderr, "%s: no such word\n", what);
  exit(2);
}

int main(int argc, char **argv) {
  int i = 2, result;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc > 2 && strncmp(argv[2], "single:", 7) == 0) {
    result = VELOC_Init_single((unsigned)atoi(argv[i++] + 7) + (unsigned)rank, argv[1]);
  } else {
    result = VELOC_Init(MPI_COMM_WORLD, argv[1]);
  }
  printf("%d init %d\n", rank, result);
  for (; i < argc; ++i) {
    char word[256];
    snprintf(word, sizeof word, "%s", argv[i]);
    result = act(word);
    printf("%d %s %d\n", rank, argv[i], result);
    fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
