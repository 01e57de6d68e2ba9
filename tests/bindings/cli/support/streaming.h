// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Publishers and subscribers as a user starts them: a run directory of the test's own, and files to publish.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {

class Streaming : public testing::Test {
 protected:
  Environment environment() const {
    return {{"FRESHET_RUN_DIR", folder_ / "run"}, {"XDG_STATE_HOME", folder_ / "state"}};
  }

  Running start(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    return Running(arguments, environment());
  }

  Ended run_to_end(std::vector<std::string> arguments) const { return start(std::move(arguments)).wait(); }

  std::string file_of(const ModelBytes& model, const std::string& name) const {
    const std::string path = folder_ / name;
    write_file(path, encoded(model));
    return path;
  }

  /// Written aside and renamed into the folder, as a careful trainer does.
  void drop(const std::string& folder, const std::string& name, const std::string& bytes) const {
    write_file(folder + "/" + name + ".tmp", bytes);
    std::filesystem::rename(folder + "/" + name + ".tmp", folder + "/" + name);
  }

  TemporaryFolder folder_;
};

}  // namespace freshet::cli_test
