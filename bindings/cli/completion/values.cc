// SPDX-License-Identifier: Apache-2.0
// `freshet complete`: the words that a shell offers for a model or a version. The completion scripts call it.

#include "bindings/cli/completion/values.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/top/sample.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/words/number.h"
#include "transport/directory/directory.h"

namespace freshet::cli {
namespace {

/// Nobody waits longer for a key to do something; $FRESHET_COMPLETION_MS says another time.
constexpr std::int64_t kCompletionPatienceMs = 400;
constexpr std::int64_t kCompletionPatienceMsMax = 60'000;
constexpr std::size_t kCompletionsMax = 500;
constexpr std::array<const char*, 4> kCompletedKinds = {"published", "published-versions", "stored", "stored-versions"};

/// Whatever the process waits for then: a directory or a repository far away, a disk.
void end_in_time() {
  struct sigaction action {};
  action.sa_handler = [](int) { ::_exit(0); };
  ::sigaction(SIGALRM, &action, nullptr);
  const std::string given = system_env().variable("FRESHET_COMPLETION_MS").value_or("");
  const std::int64_t ms = std::clamp(number_in<std::int64_t>(given).value_or(kCompletionPatienceMs), std::int64_t{1},
                                     kCompletionPatienceMsMax);
  const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

struct CompleteArguments {
  std::string kind;
  std::string directory;
};

Result<std::vector<std::string>> published_words(const CompleteArguments& arguments) {
  std::vector<std::string> words;
  if (arguments.kind == "published") {
    FRESHET_ASSIGN(const auto directory, open_directory(arguments.directory));
    FRESHET_ASSIGN(const std::vector<Directory::Entry> entries, directory->list());
    for (const Directory::Entry& entry : entries) words.push_back(entry.model);
    return words;
  }
  FRESHET_ASSIGN(const std::vector<Json> models, sample_all({.directory = arguments.directory}));
  for (const Json& model : models) {
    const Json versions = stat_list(model, "versions");
    for (auto one = versions.rbegin(); one != versions.rend(); ++one) {
      words.push_back(format("{}@{}", stat_text(model, "model"), stat_number(*one, "version")));
    }
  }
  return words;
}

Result<std::vector<std::string>> stored_words(const Program& program, const CompleteArguments& arguments) {
  if (program.repository.empty()) return std::vector<std::string>();
  FRESHET_ASSIGN(const auto repository, open_repository(program.repository, {.access = RepositoryAccess::read,
                                                                             .security = program.repository_security}));
  FRESHET_ASSIGN(std::vector<std::string> models, repository->models());
  if (arguments.kind == "stored") return models;
  std::vector<std::string> words = models;
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const std::vector<LineageRow> rows, repository->versions(model));
    for (auto row = rows.rbegin(); row != rows.rend() && words.size() < kCompletionsMax; ++row) {
      if (!row->retired) words.push_back(to_string(row->version));
    }
  }
  return words;
}

Result<ExitCode> complete(Program& program, const CompleteArguments& arguments) {
  end_in_time();
  const bool is_stored = arguments.kind.starts_with("stored");
  FRESHET_ASSIGN(std::vector<std::string> words,
                 is_stored ? stored_words(program, arguments) : published_words(arguments));
  // A shell gets names alone, whatever a directory or a provider answered.
  std::erase_if(words, [](const std::string& word) { return !parse_version_name(word); });
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), kCompletionsMax); ++i) text += words[i] + "\n";
  FRESHET_TRY(program.out.write(text));
  return ExitCode::done;
}

/// "{auto,shm}" as "words:auto shm"; empty without braces.
std::string listed_words(const std::string& type) {
  const std::size_t begin = type.find('{');
  const std::size_t end = type.find('}', begin == type.npos ? 0 : begin);
  if (begin == type.npos || end == type.npos) return "";
  std::string words = type.substr(begin + 1, end - begin - 1);
  std::ranges::replace(words, ',', ' ');
  return "words:" + words;
}

}  // namespace

std::string value_kind(const CLI::Option& option, const std::string& command) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  if (std::string words = listed_words(type); !words.empty()) return words;
  const std::string name = option.get_positional() ? option.get_name(true) : type;
  const auto is_one_of = [&](std::initializer_list<std::string_view> known) {
    return std::ranges::any_of(known, [&](std::string_view one) { return name.starts_with(one); });
  };
  const bool is_stored = command.starts_with("repo") || command.starts_with("replay") || command.starts_with("bisect");
  if (is_one_of({"MODEL@V", "MODEL[@V]", "GOOD", "BAD", "A", "B"}) && !is_one_of({"ADDRESS", "BYTES"})) {
    return is_stored ? "stored-versions" : "published-versions";
  }
  if (name == "MODEL" || name == "RUN") return is_stored ? "stored" : "published";
  if (is_one_of({"FILE", "DIR", "F", "G.json", "R.json", "PLACE", "PATH", "KEY", "LOSSES", "COMMAND"})) return "path";
  return "none";
}

void add_complete(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<CompleteArguments>();
  CLI::App& command = *root.add_subcommand("complete", "print the words for a value, or nothing after 0.4 seconds");
  command.group("");  // People complete with a key.
  command.add_option("KIND", arguments->kind, "what to list")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>(kCompletedKinds.begin(), kCompletedKinds.end())));
  command.add_option("--repo", program.repository, "the repository")->type_name("PLACE")->envname("FRESHET_REPO");
  add_directory(command, arguments->directory);
  act_with(command, program, arguments, complete);
}

}  // namespace freshet::cli
