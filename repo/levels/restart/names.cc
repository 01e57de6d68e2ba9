// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/restart/names.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::levels {
namespace {

using Names = std::unordered_set<std::string_view>;

/// "rng" of "rng.r12"; empty for what is no name of a rank's own tensor. A repository does not record layouts.
std::string_view base_of_own(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == name.size() || end < 2) return {};
  return name.substr(end - 1, 2) == ".r" ? name.substr(0, end - 1) : std::string_view();
}

Names names_of(const TensorTable& table) {
  Names names;
  for (const LaidTensor& tensor : table.tensors) names.insert(tensor.spec.name);
  return names;
}

std::string in_words(const std::vector<std::string_view>& names) {
  constexpr std::size_t kNamedMax = 8;
  std::string words = names.size() == 1 ? "tensor " : "tensors ";
  for (std::size_t i = 0; i < std::min(names.size(), kNamedMax); ++i) {
    words += format("{}{}", i == 0 ? "" : ", ", shown(names[i]));
  }
  if (names.size() > kNamedMax) words += format(" and {} more", names.size() - kNamedMax);
  return words;
}

}  // namespace

Status check_not_renamed(const std::string& which, const TensorTable& version, const TensorTable& job) {
  const Names theirs = names_of(version);
  const Names ours = names_of(job);
  Names own_bases;  // Of the job's own tensors.
  for (const LaidTensor& tensor : job.tensors) {
    if (tensor.layout.cut == Cut::own) own_bases.insert(base_of_own(tensor.spec.name));
  }
  Names bases_in_version;
  for (const std::string_view name : theirs) bases_in_version.insert(base_of_own(name));
  std::vector<std::string_view> left;
  for (const LaidTensor& tensor : version.tensors) {
    const std::string_view name = tensor.spec.name;
    if (!ours.contains(name) && !own_bases.contains(base_of_own(name))) left.push_back(name);
  }
  std::vector<std::string_view> fresh;
  for (const LaidTensor& tensor : job.tensors) {
    const std::string_view name = tensor.spec.name;
    const bool came_with_rank = tensor.layout.cut == Cut::own && bases_in_version.contains(base_of_own(name));
    if (!theirs.contains(name) && !came_with_rank) fresh.push_back(name);
  }
  if (left.empty() || fresh.empty()) return {};
  return fail(Code::failed_precondition,
              format("{} has {}, which no rank takes, and lacks {}, which would begin fresh: give a renamed tensor its "
                     "old name, or train on without what is left (--allow-left; in Python allow_left=True)",
                     which, in_words(left), in_words(fresh)));
}

}  // namespace freshet::levels
