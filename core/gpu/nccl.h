// SPDX-License-Identifier: Apache-2.0
#pragma once

/// NCCL's functions, as libnccl.so.2 exports them, with prototypes of our own, as core/gpu/driver.h has those of the
/// driver. Where a toolkit's nccl.h is found, a test compares them (tests/core/gpu/nccl_header_test.cc).

#include <array>
#include <climits>
#include <cstddef>

#include "core/gpu/driver.h"

namespace freshet::gpu::nccl {

using Answer = unsigned int;                // ncclResult_t
using Object = struct CommunicatorObject*;  // ncclComm_t

constexpr Answer kSuccess = 0;
constexpr Answer kInProgress = 7;
constexpr unsigned int kBytes = 1;  // ncclUint8
constexpr int kVersionMin = 22300;
constexpr int kBlocksMax = 8;

struct Id {
  std::array<std::byte, 128> bytes;
};

/// ncclConfig_t as version 2.17 had it. A later library takes its size and version, and has its own values for what
/// was appended since.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN and null: the library's own value.
  int blocks_min = INT_MIN;
  int blocks_max = kBlocksMax;
  const char* net_name = nullptr;
};

/// Each function's name and parameters; all return an Answer. A stream is the driver's.
#define FRESHET_NCCL_FUNCTIONS(X)                                                                                    \
  X(ncclGetVersion, (int* version))                                                                                  \
  X(ncclGetUniqueId, (Id * id))                                                                                      \
  X(ncclCommInitRankConfig, (Object * made, int ranks, Id id, int rank, Config* config))                             \
  X(ncclCommGetAsyncError, (Object communicator, Answer * answer))                                                   \
  X(ncclCommAbort, (Object communicator))                                                                            \
  X(ncclBroadcast, (const void* from, void* to, std::size_t count, unsigned int type, int root, Object communicator, \
                    driver::StreamObject stream))                                                                    \
  X(ncclSend, (const void* from, std::size_t count, unsigned int type, int rank, Object communicator,                \
               driver::StreamObject stream))                                                                         \
  X(ncclRecv,                                                                                                        \
    (void* to, std::size_t count, unsigned int type, int rank, Object communicator, driver::StreamObject stream))

/// Immutable. The library stays loaded until the process ends: it has threads of its own.
struct Library {
#define FRESHET_NCCL_POINTER(name, parameters) Answer(*name) parameters = nullptr;
  FRESHET_NCCL_FUNCTIONS(FRESHET_NCCL_POINTER)
#undef FRESHET_NCCL_POINTER
  const char* (*ncclGetErrorString)(Answer answer) = nullptr;
  int version = 0;
};

}  // namespace freshet::gpu::nccl
