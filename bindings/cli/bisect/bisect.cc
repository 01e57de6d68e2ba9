// SPDX-License-Identifier: Apache-2.0
// `freshet bisect`: which version on a line of ancestors was the first bad one, and which of its tensors hurt.

#include <algorithm>
#include <memory>

#include "bindings/cli/bisect/search.h"
#include "bindings/cli/bisect/trial.h"
#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct BisectArguments {
  std::string model;
  std::string good;
  std::string bad;
  std::string command;
};

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::good: return "good";
    case Verdict::bad: return "bad";
    case Verdict::skipped: break;
  }
  return "skipped";
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// "3" is MODEL@3.
std::string full_name(const std::string& model, const std::string& text) {
  return is_number(text) ? model + "@" + text : text;
}

/// From the good version to the bad one, oldest first.
Result<std::vector<LineageRow>> line_between(const Repository& repository, const VersionName& good,
                                             const VersionName& bad) {
  FRESHET_ASSIGN(const std::vector<LineageRow> up_from_bad, repository.lineage(bad));
  FRESHET_ASSIGN(const std::vector<LineageRow> up_from_good, repository.lineage(good));
  const VersionName& first = up_from_good.front().version;
  const VersionName& last = up_from_bad.front().version;
  if (first == last) {
    return fail(Code::invalid_argument, format("{} cannot be both good and bad", to_string(first)));
  }
  const auto found = std::ranges::find(up_from_bad, first, &LineageRow::version);
  if (found == up_from_bad.end()) {
    std::string why = format("{} is not an ancestor of {}", to_string(first), to_string(last));
    if (std::ranges::find(up_from_good, last, &LineageRow::version) != up_from_good.end()) {
      why += "; the good one came from the bad one: exchange --good and --bad";
    } else {
      FRESHET_ASSIGN(const std::optional<VersionName> common, repository.mrca(first, last));
      why += common ? format("; both came from {}", to_string(*common)) : "; they have no ancestor in common";
    }
    return fail(Code::invalid_argument, why);
  }
  std::vector<LineageRow> line(up_from_bad.begin(), std::next(found));
  std::ranges::reverse(line);
  return line;
}

/// The search's state and what it tells. One thread at a time.
class Bisection {
 public:
  Bisection(Program& program, const Repository& repository, const std::string& command)
      : program_(program), repository_(repository), trials_(program, command) {}

  Result<ExitCode> run(const VersionName& good, const VersionName& bad) {
    FRESHET_ASSIGN(line_, line_between(repository_, good, bad));
    FRESHET_TRY(confirm(0, Verdict::good));
    FRESHET_TRY(confirm(line_.size() - 1, Verdict::bad));
    FRESHET_ASSIGN(const FirstBad found,
                   find_first_bad(line_.size(), [this](std::size_t at) { return judge_version(at); }));
    FRESHET_TRY(tell_versions(found));
    FRESHET_TRY(search_tensors(found));
    return ExitCode::done;
  }

 private:
  /// A search between ends that are not what they were said to be finds nonsense.
  Status confirm(std::size_t at, Verdict expected) {
    const std::string name = to_string(line_[at].version);
    if (line_[at].retired) {
      return fail(Code::failed_precondition, name + " was retired: its weights are gone, so it cannot be tried");
    }
    FRESHET_ASSIGN(const Judgement judgement, try_version(at));
    if (judgement.verdict == expected) return {};
    const std::string code =
        judgement.exit_code ? format(" (exit code {})", *judgement.exit_code) : std::string(": it has no weights");
    return fail(Code::failed_precondition,
                format("{} was given as {}, but is {}{}", name, word_of(expected), word_of(judgement.verdict), code));
  }

  Result<Judgement> try_version(std::size_t at) {
    const VersionName& name = line_[at].version;
    Judgement judgement;
    if (!line_[at].retired) {
      FRESHET_ASSIGN(judgement, trials_.of_version(repository_, name));
    }
    Json line = {{"tried", to_string(name)}, {"verdict", word_of(judgement.verdict)}};
    std::string remark;
    if (judgement.exit_code) {
      line["exit_code"] = *judgement.exit_code;
    } else {
      line["reason"] = line_[at].retired ? "retired" : "no weights";
      remark = line_[at].retired ? ", it was retired" : ", it has no weights";
    }
    FRESHET_TRY(program_.out.emit(line, format("{}: {}{}", to_string(name), word_of(judgement.verdict), remark)));
    return judgement;
  }

  Result<Verdict> judge_version(std::size_t at) {
    FRESHET_ASSIGN(const Judgement judgement, try_version(at));
    return judgement.verdict;
  }

  Status tell_versions(const FirstBad& found) {
    const std::string good = to_string(line_[found.last_good].version);
    const std::string bad = to_string(line_[found.first_bad].version);
    answer_ = {{"last_good", good}, {"first_bad", bad}, {"skipped", Json::array()}};
    for (const std::size_t at : found.skipped) answer_["skipped"].push_back(to_string(line_[at].version));
    std::string text = format("first bad: {} (last good: {})", bad, good);
    if (!found.skipped.empty()) text += format("; {} between them could not be tried", found.skipped.size());
    if (!program_.out.json) FRESHET_TRY(program_.out.write(text + "\n"));
    return {};
  }

  Status search_tensors(const FirstBad& found) {
    FRESHET_ASSIGN(const Mixture mixture,
                   Mixture::read(repository_, line_[found.last_good].version, line_[found.first_bad].version));
    const std::size_t changed = mixture.exchangeable().size();
    answer_["changed_tensors"] = changed;
    std::string reason;
    if (changed == 0) reason = "no tensor of the good one could take a bad one's place";
    // Two of one graph are themselves the mixtures that have nothing and everything from the bad one.
    if (reason.empty() && !mixture.is_whole()) {
      FRESHET_ASSIGN(const Verdict without, judge_mixture(mixture, {}));
      if (without != Verdict::good) {
        reason = format(
            "with all {} changed tensors as they were before it is still {}: the cause is among the {} new "
            "ones, or in the graph",
            changed, word_of(without), mixture.new_tensors());
      }
    }
    if (!reason.empty()) return tell_no_tensors(reason);
    FRESHET_ASSIGN(const std::vector<std::size_t> culprits,
                   find_least_bad_set(changed, [&](std::span<const std::size_t> from_bad) {
                     return judge_mixture(mixture, from_bad);
                   }));
    Json names = Json::array();
    std::string text = format("{} of {} changed tensors make it bad:", culprits.size(), changed);
    for (const std::size_t at : culprits) {
      names.push_back(mixture.exchangeable()[at]);
      text += "\n  " + printable(mixture.exchangeable()[at]);
    }
    answer_["tensors"] = std::move(names);
    answer_["tensor_bytes"] = mixture.bytes_of(culprits);
    answer_["runs"] = trials_.runs();
    return program_.out.emit(answer_, text);
  }

  Status tell_no_tensors(const std::string& reason) {
    answer_["tensors"] = Json();
    answer_["reason"] = reason;
    answer_["runs"] = trials_.runs();
    return program_.out.emit(answer_, reason);
  }

  Result<Verdict> judge_mixture(const Mixture& mixture, std::span<const std::size_t> from_bad) {
    FRESHET_ASSIGN(const Judgement judgement, trials_.of_mixture(mixture, from_bad));
    const std::size_t changed = mixture.exchangeable().size();
    FRESHET_TRY(program_.out.emit(
        {{"tried_tensors", from_bad.size()},
         {"of", changed},
         {"verdict", word_of(judgement.verdict)},
         {"exit_code", judgement.exit_code.value_or(0)}},
        format("{} of {} changed tensors: {}", from_bad.size(), changed, word_of(judgement.verdict))));
    return judgement.verdict;
  }

  Program& program_;
  const Repository& repository_;
  Trials trials_;
  std::vector<LineageRow> line_;
  Json answer_;
};

Result<ExitCode> bisect(Program& program, Repository& repository, const BisectArguments& arguments) {
  const Interrupt::Deferral deferral;
  Bisection bisection(program, repository, arguments.command);
  FRESHET_ASSIGN(const VersionName good, repository.resolve(full_name(arguments.model, arguments.good)));
  FRESHET_ASSIGN(const VersionName bad, repository.resolve(full_name(arguments.model, arguments.bad)));
  return bisection.run(good, bad);
}

}  // namespace

void add_bisect(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<BisectArguments>();
  CLI::App& command = *root.add_subcommand("bisect", "find the first bad version, and then its harmful tensors");
  add_json_flag(command, program);
  add_repository_option(command, program);
  add_client_keys(command, program.repository_security);
  add_model(command, arguments->model);
  command.add_option("--good", arguments->good, "a version that is good: a number, MODEL@V or MODEL@ALIAS")
      ->type_name("A")
      ->required()
      ->check(reference_check());
  command.add_option("--bad", arguments->bad, "a bad version that came from the good one")
      ->type_name("B")
      ->required()
      ->check(reference_check());
  command.add_option("--exec", arguments->command, "judges a version; {} becomes the path of a safetensors file")
      ->type_name("'COMMAND {}'")
      ->required();
  command.footer(
      "COMMAND's exit code: 0 is good, 125 cannot tell, anything else up to 124 is bad, 126 and more ends the search\n"
      "(126: it cannot be run; 127: it was not found). First bisect halves the versions between A and B. Then it puts "
      "the\n"
      "first bad version's changed tensors into the last good one, in smaller and smaller groups, until a minimal bad "
      "set\n"
      "is left. A line of JSON for each trial; the last line:\n"
      "last_good, first_bad, skipped, changed_tensors, tensors, tensor_bytes, runs.\n"
      "example: freshet bisect net --good 3 --bad 9 --exec './eval.sh {}'");
  act_on_repository(command, program, arguments, RepositoryAccess::read, bisect, [](const BisectArguments& given) {
    if (given.command.find("{}") == std::string::npos) {
      throw CLI::ValidationError("bisect: --exec needs {} in the place of the file's path");
    }
    for (const std::string* version : {&given.good, &given.bad}) {
      const auto parsed = parse_version_reference(full_name(given.model, *version));
      if (!parsed) throw CLI::ValidationError("bisect: " + parsed.error().message());
    }
  });
}

}  // namespace freshet::cli
