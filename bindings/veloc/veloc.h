/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/**
 * Freshet's checkpoint levels behind the C interface of VELOC, for programs that call it: libfreshet_veloc.so.
 * docs/veloc.md has the words of the configuration and what is different.
 *
 * Collective over the communicator of VELOC_Init(): VELOC_Checkpoint(), VELOC_Checkpoint_end(), VELOC_Restart_test(),
 * VELOC_Restart(), VELOC_Restart_begin(), VELOC_Cleanup() and VELOC_Finalize(). One thread at a time. A function that
 * fails says why on stderr and returns VELOC_FAILURE; none ends the program.
 */

#include <mpi.h>
#include <string.h>

#define VELOC_SUCCESS (0)
#define VELOC_FAILURE (-1)

/** Bytes of a name, and of the buffer that VELOC_Route_file() fills. */
#define VELOC_MAX_NAME (1024)

#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)

#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

#ifdef __cplusplus
extern "C" {
#endif

/** Of all ranks of a communicator, or of one process that checkpoints by itself and is known by `id`. */
int VELOC_Init(MPI_Comm comm, const char* cfg_file);
int VELOC_Init_single(unsigned int id, const char* cfg_file);
/** Waits until the last checkpoint is where it goes. `cleanup`: the node-local files are removed then. */
int VELOC_Finalize(int cleanup);

/** Regions of memory: of the checkpoints called `name`, which have no others then; or of all others. Protecting an id
 * again moves it. */
int VELOC_Mem_protect(int id, void* ptr, size_t count, size_t base_size);
int VELOC_Mem_unprotect(int id);
int VELOC_Mem_clear(void);
int VELOC_Region_protect(int id, void* ptr, size_t count, size_t base_size, const char* name);
int VELOC_Region_unprotect(int id, const char* name);
int VELOC_Region_clear(const char* name);

/** Where this checkpoint's file is to be written, or lies when it was restored; one file a checkpoint. */
int VELOC_Route_file(const char* original, char* routed);

/** Removes the node-local versions called `name`. */
int VELOC_Cleanup(const char* name);

/** `version`: 0 or more, the program's own number. */
int VELOC_Checkpoint_begin(const char* name, int version);
int VELOC_Checkpoint_selective(int mode, int* ids, int id_count);
int VELOC_Checkpoint_mem(void);
/** `success` 0 at any rank: there is no such version, and VELOC_FAILURE at all. */
int VELOC_Checkpoint_end(int success);
/** Until the last checkpoint is where it goes; VELOC_FAILURE when it did not get there. */
int VELOC_Checkpoint_wait(void);
/** 1 when it is, 0 when it is still on its way. */
int VELOC_Checkpoint_finished(void);
int VELOC_Checkpoint(const char* name, int version);

/**
 * The newest version that can be restored, up to `version` unless that is 0; VELOC_FAILURE when there is none, or when
 * it is of another number of ranks. Ends the job (MPI_Abort) where that cannot be known: a repository or a rank does not
 * answer, or what was acknowledged is damaged everywhere.
 */
int VELOC_Restart_test(const char* name, int version);
int VELOC_Restart_begin(const char* name, int version);
int VELOC_Recover_selective(int mode, int* ids, int id_count);
/** Bytes of a region of the version that is restored; -1 when it has none with that id. */
int VELOC_Recover_size(int id);
int VELOC_Recover_mem(void);
int VELOC_Restart_end(int success);
int VELOC_Restart(const char* name, int version);

#ifdef __cplusplus
}
#endif
