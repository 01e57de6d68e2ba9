// SPDX-License-Identifier: Apache-2.0
#pragma once

/// An Env with variables of a test's own.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/env.h"

namespace freshet {

/// Variables of a test's own, instead of this process's.
class VariableEnv final : public Env {
 public:
  using Variables = std::map<std::string, std::string>;
  static VariableEnv with(Variables variables) { return VariableEnv(std::move(variables), 0); }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    return system_env().create_file(path);
  }
  Status rename_file(const std::string& from, const std::string& to) override {
    return system_env().rename_file(from, to);
  }
  Status remove_file(const std::string& path) override { return system_env().remove_file(path); }
  Status sync_folder(const std::string& path) override { return system_env().sync_folder(path); }
  void fill_random(MutableBytes out) override { system_env().fill_random(out); }
  std::optional<std::string> variable(const std::string& name) const override {
    const auto found = variables_.find(name);
    if (found == variables_.end()) return std::nullopt;
    return found->second;
  }

 private:
  VariableEnv(Variables variables, int) : variables_(std::move(variables)) {}
  const Variables variables_;
};

}  // namespace freshet
