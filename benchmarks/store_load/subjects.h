// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Those who store and load a model. Each stores versions one after the other and loads tensors of the newest.

#include <memory>
#include <span>
#include <string>

#include "benchmarks/store_load/model.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Where the time of a store went, in milliseconds.
struct Parts {
  double write = 0;    ///< Handing the bytes to the backend: copies, writes that don't wait for the disk, digests.
  double sync = 0;     ///< Waiting for the disk until the blobs are durable.
  double records = 0;  ///< The batch that makes the version exist.
};

/// One thread at a time.
class Subject {
 public:
  virtual ~Subject() = default;
  /// Milliseconds until `model`'s newest version, of which `changed` is new, is stored.
  virtual Result<double> store(const Model& model, std::span<const std::uint32_t> changed) = 0;
  /// Milliseconds until `tensors` of it are in the model's second memory.
  virtual Result<double> load(Model& model, std::span<const std::uint32_t> tensors) = 0;
  virtual Parts parts() const { return {}; }
  /// Bytes that it keeps, and their medium's.
  virtual std::uint64_t kept_bytes() const { return 0; }
};

enum class Keep { memory_touched, memory_untouched, rocksdb };
Result<std::unique_ptr<Subject>> make_freshet(const Model& model, Keep keep, const std::string& folder);

/// memcpy between touched buffers, tensor by tensor: the memory's limit.
std::unique_ptr<Subject> make_copy(const Model& model);
/// One file, of the newest version, written in pieces of 1 MiB and synced; read back from the disk: the disk's limit.
std::unique_ptr<Subject> make_file(const std::string& folder);

enum class PeerKind { h5py, h5py_disk, safetensors };
Result<std::unique_ptr<Subject>> make_python(const Sizes& sizes, PeerKind kind, const std::string& python,
                                             const std::string& folder);

/// Takes what the kernel keeps of the folder's files out of memory, so that reading asks the disk.
void forget_pages(const std::string& folder);

double milliseconds_of(const std::function<Status()>& work, Status& status);

}  // namespace freshet::benchmarks
