// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/stream/folder_writer.h"

#include <iostream>

namespace freshet::benchmarks {
namespace {

constexpr std::chrono::milliseconds kLookAgain{50};  ///< For the end.

}  // namespace

Result<std::unique_ptr<FolderWriter>> FolderWriter::open(const std::string& folder) {
  FRESHET_ASSIGN(auto writer, file::WeightFolderWriter::open(folder, {.full_every = 1}));
  return std::unique_ptr<FolderWriter>(new FolderWriter(std::move(writer)));
}

Status FolderWriter::write(VersionNumber number, std::span<const TensorView> tensors) {
  FRESHET_TRY(writer_.write({.number = number, .tensors = {tensors.begin(), tensors.end()}, .metadata = {}}, nullptr));
  return {};
}

Result<std::unique_ptr<FolderMirror>> FolderMirror::start(const std::string& folder, const std::string& model,
                                                          const std::string& directory) {
  std::unique_ptr<FolderMirror> mirror(new FolderMirror());
  FRESHET_ASSIGN(mirror->writer_, FolderWriter::open(folder));
  SubscriberOptions options;
  options.model = model;
  options.directory = directory;
  FRESHET_ASSIGN(mirror->subscriber_, Subscriber::open(std::move(options)));
  FolderMirror* const self = mirror.get();
  mirror->thread_ = std::jthread([self](const std::stop_token& stop) { self->run(stop); });
  return mirror;
}

FolderMirror::~FolderMirror() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void FolderMirror::run(const std::stop_token& stop) {
  VersionNumber written = 0;
  while (!stop.stop_requested()) {
    if (!subscriber_->wait_for(written + 1, kLookAgain)) continue;
    const Snapshot snapshot = subscriber_->snapshot();
    std::vector<TensorView> views;
    const auto& specs = snapshot.manifest().architecture->tensors();
    for (std::uint32_t i = 0; i < specs.size(); ++i) views.push_back({.spec = specs[i], .data = snapshot.bytes(i)});
    written = snapshot.version();
    if (const Status status = writer_->write(written, views); !status) std::cerr << status.error().message() << "\n";
  }
}

}  // namespace freshet::benchmarks
