// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan/loss_columns.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::cli {
namespace {

/// Names that mean the same; a name of an earlier rank is taken before those of the later ones.
using LossRanks = std::span<const std::vector<std::string_view>>;

const std::array<std::vector<std::string_view>, 6> kStepNames = {
    {{"step"}, {"_step"}, {"Step"}, {"global_step"}, {"trainer/global_step", "train/global_step"}, {"epoch"}}};
const std::array<std::vector<std::string_view>, 3> kLossNames = {
    {{"loss"},
     {"train_loss", "train/loss", "training_loss", "loss/train", "train_loss_step", "train/loss_step"},
     {"train_loss_epoch", "train/loss_epoch"}}};
const std::array<std::vector<std::string_view>, 3> kEvalLossNames = {
    {{"eval_loss"},
     {"val_loss", "val/loss", "eval/loss", "valid_loss", "validation_loss", "loss/val", "val_loss_step"},
     {"val_loss_epoch", "val/loss_epoch"}}};

/// A chart that was exported from Weights & Biases has "RUN - loss", and the same with __MIN and __MAX.
std::string_view name_within_run(std::string_view column) {
  if (column.ends_with("__MIN") || column.ends_with("__MAX")) return {};
  const std::size_t mark = column.rfind(" - ");
  return mark == column.npos ? column : column.substr(mark + 3);
}

std::string listed_columns(std::span<const std::string_view> names, std::span<const std::size_t> chosen) {
  constexpr std::size_t kColumnsShown = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(chosen.size(), kColumnsShown); ++i) {
    text += (i == 0 ? "" : ", ") + shown(names[chosen[i]]);
  }
  return chosen.size() > kColumnsShown ? text + format(" and {} more", chosen.size() - kColumnsShown) : text;
}

Result<std::size_t> wanted_column(std::span<const std::string_view> names, const std::string& wanted,
                                  std::string_view option) {
  std::vector<std::size_t> all(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) all[i] = i;
  const auto found = std::ranges::find(names, wanted);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  return fail(Code::invalid_argument, format("{} {}: there is no such column; there are {}", option, shown(wanted),
                                             listed_columns(names, all)));
}

/// kNone where no name of the ranks is there.
Result<std::size_t> column_by_rank(std::span<const std::string_view> names, LossRanks ranks, std::string_view role,
                                   std::string_view option) {
  for (const auto& rank : ranks) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (std::ranges::find(rank, name_within_run(names[i])) != rank.end()) found.push_back(i);
    }
    if (found.empty()) continue;
    if (found.size() == 1) return found.front();
    if (names[found[0]] == names[found[1]]) {
      return fail(Code::invalid_argument, format("two columns are named {}", shown(names[found[0]])));
    }
    return fail(Code::invalid_argument, format("several columns could be the {}: {}; name one with {}", role,
                                               listed_columns(names, found), option));
  }
  return LossColumns::kNone;
}

Result<std::size_t> found_column(std::span<const std::string_view> names, const std::string& wanted, LossRanks ranks,
                                 std::string_view role, std::string_view option) {
  return wanted.empty() ? column_by_rank(names, ranks, role, option) : wanted_column(names, wanted, option);
}

}  // namespace

Result<LossColumns> find_loss_columns(std::span<const std::string_view> names, const LossColumnNames& wanted) {
  LossColumns columns;
  FRESHET_ASSIGN(columns.step, found_column(names, wanted.step, kStepNames, "step", "--step-column"));
  FRESHET_ASSIGN(columns.loss, found_column(names, wanted.loss, kLossNames, "loss", "--loss-column"));
  FRESHET_ASSIGN(columns.eval_loss,
                 found_column(names, wanted.eval_loss, kEvalLossNames, "held-out loss", "--eval-column"));
  for (const auto& [column, role] : {std::pair(columns.step, "step"), std::pair(columns.loss, "loss")}) {
    if (column != LossColumns::kNone) continue;
    std::vector<std::size_t> all(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) all[i] = i;
    return fail(Code::invalid_argument, format("the header has no column {0}; it has {1}; name one with --{0}-column",
                                               role, listed_columns(names, all)));
  }
  const bool has_plain_eval = columns.eval_loss == LossColumns::kNone || names[columns.eval_loss] == "eval_loss";
  columns.is_plain = !wanted.any() && names[columns.step] == "step" && names[columns.loss] == "loss" &&
                     has_plain_eval && std::ranges::find(names, "epoch") == names.end();
  return columns;
}

}  // namespace freshet::cli
