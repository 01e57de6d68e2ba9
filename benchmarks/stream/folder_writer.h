// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The trainer's end of the channel `file`: versions written into a folder of weight_vNNNNNN, each a whole checkpoint,
/// in the training thread (sync) or by a thread that follows the publisher, as `freshet subscribe --layout weight_v`
/// does.

#include <memory>
#include <string>
#include <thread>

#include "transport/file/weight_folder.h"
#include "transport/subscriber.h"

namespace freshet::benchmarks {

/// In the calling thread. One thread at a time.
class FolderWriter {
 public:
  static Result<std::unique_ptr<FolderWriter>> open(const std::string& folder);
  Status write(VersionNumber number, std::span<const TensorView> tensors);

 private:
  explicit FolderWriter(file::WeightFolderWriter writer) : writer_(std::move(writer)) {}
  file::WeightFolderWriter writer_;
};

/// Writes what a publisher of this host has, the newest always, until it is destroyed.
class FolderMirror {
 public:
  static Result<std::unique_ptr<FolderMirror>> start(const std::string& folder, const std::string& model,
                                                     const std::string& directory);
  ~FolderMirror();

 private:
  FolderMirror() = default;
  void run(const std::stop_token& stop);
  std::unique_ptr<FolderWriter> writer_;
  std::unique_ptr<Subscriber> subscriber_;
  std::jthread thread_;
};

}  // namespace freshet::benchmarks
