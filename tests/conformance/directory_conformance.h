// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every directory must do, whatever it is made of. A new one joins with a world that it can be opened in
/// (directory_conformance_test.cc).

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "transport/directory/directory.h"

namespace freshet {

/// The place that directories of one test share: a folder, a server.
class DirectoryWorld {
 public:
  virtual ~DirectoryWorld() = default;
  /// Each one stands for a process of its own.
  virtual Result<std::unique_ptr<Directory>> open() = 0;
  /// Non-empty when there can be no such world on this machine.
  virtual std::string why_not() const { return {}; }
};

struct DirectoryCase {
  std::string name;
  std::unique_ptr<DirectoryWorld> (*make)();
};

class DirectoryConformance : public ::testing::TestWithParam<DirectoryCase> {
 protected:
  void SetUp() override;
  std::unique_ptr<Directory> open();
  static std::unique_ptr<Directory::Claim> claim(Directory& directory, const std::string& model = "demo");
  static Directory::Entry entry(std::uint64_t incarnation, const std::string& model = "demo");
  /// Waits for news, on the descriptor, until `holds` does.
  static bool hears(Directory::Watch& watch, const std::function<bool()>& holds);

  std::unique_ptr<DirectoryWorld> world_;
};

}  // namespace freshet
