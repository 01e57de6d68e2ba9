// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The program's parts, wired by run(): the command tree declares options and sets the action; the action runs after
/// the whole line was understood.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bindings/cli/frame/exit_code.h"
#include "bindings/cli/frame/interrupt.h"
#include "bindings/cli/frame/output.h"
#include "core/base/result.h"
#include "transport/security.h"

namespace freshet::cli {

/// One thread at a time.
struct Program {
  const Interrupt& interrupt;
  Output out;
  std::string repository;               ///< --repo, else $FRESHET_REPO; empty when neither is there.
  std::vector<std::string> local;       ///< --local: the folders of a job's ranks, in place of a repository.
  SecurityOptions repository_security;  ///< For an address.
  std::function<Result<ExitCode>()> action;
};

/// Each adds its command to the tree; the program outlives the tree's use.
void add_publish(CLI::App& root, Program& program);
void add_subscribe(CLI::App& root, Program& program);
void add_relay(CLI::App& root, Program& program);
void add_archive(CLI::App& root, Program& program);
void add_keygen(CLI::App& root, Program& program);
void add_rollback(CLI::App& root, Program& program);
void add_release(CLI::App& root, Program& program);
void add_commit(CLI::App& root, Program& program);
void add_top(CLI::App& root, Program& program);
void add_replay(CLI::App& root, Program& program);
void add_plan(CLI::App& root, Program& program);
void add_checkpoint(CLI::App& root, Program& program);
void add_repo(CLI::App& root, Program& program);
void add_bisect(CLI::App& root, Program& program);
void add_why(CLI::App& root, Program& program);
void add_report(CLI::App& root, Program& program);
void add_provider(CLI::App& root, Program& program);
void add_tier(CLI::App& root, Program& program);
void add_triton(CLI::App& root, Program& program);
void add_doctor(CLI::App& root, Program& program);
void add_completion(CLI::App& root, Program& program);
void add_complete(CLI::App& root, Program& program);

/// The whole program: parses, acts, says what went wrong. Returns the exit code.
int run(int argc, const char* const* argv);

}  // namespace freshet::cli
