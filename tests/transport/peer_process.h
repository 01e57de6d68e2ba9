// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A stream_peer (tests/transport/stream_peer.cc) under a test's control.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/answering_process.h"
#include "tests/transport/model_fixture.h"

namespace freshet::test {

class PeerProcess : public AnsweringProcess {
 public:
  /// Built beside the test program.
  static std::string program() {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "stream_peer").string();
  }

  explicit PeerProcess(std::vector<std::string> arguments) : AnsweringProcess(with_program(std::move(arguments))) {}

  /// `directory`: a folder, or one on Redis.
  static PeerProcess publisher(const std::string& directory, std::size_t tensors, std::size_t elements) {
    return PeerProcess({"publish", "demo", directory, std::to_string(tensors), std::to_string(elements)});
  }
  /// One that is fetched from by that channel.
  static PeerProcess remote_publisher(const std::string& directory, std::size_t tensors, std::size_t elements,
                                      const std::string& channel) {
    return PeerProcess({"publish", "demo", directory, std::to_string(tensors), std::to_string(elements), channel});
  }
  static PeerProcess subscriber(const std::string& directory) { return PeerProcess({"subscribe", "demo", directory}); }

 private:
  static std::vector<std::string> with_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program());
    return arguments;
  }
};

}  // namespace freshet::test
