// SPDX-License-Identifier: Apache-2.0
#include "core/model/own_tags.h"

#include <algorithm>
#include <unordered_set>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/json/json_document.h"

namespace freshet {
namespace {

constexpr std::string_view kTiedTag = "freshet.tied";
constexpr std::string_view kOptimizersTag = "freshet.optimizers";
constexpr std::string_view kSchedulersTag = "freshet.schedulers";
constexpr std::string_view kPartsTag = "freshet.parts";
constexpr std::string_view kPartOfTag = "freshet.part_of";

using NamePairs = std::vector<std::pair<std::string, std::string>>;

/// Nothing for a text of another form.
std::optional<NamePairs> tied_in(const std::string& text) {
  const auto document = parse_json(text);
  if (!document || !document->is_object()) return std::nullopt;
  NamePairs tied;
  for (const auto& [further, first] : document->get_ref<const JsonDocument::object_t&>()) {
    if (!first.is_string()) return std::nullopt;
    tied.emplace_back(further, first.get<std::string>());
  }
  return tied;
}

bool is_share(const JsonDocument& value) {
  if (!value.is_string()) return false;
  const auto name = parse_version_name(value.get_ref<const std::string&>());
  if (!name || name->number == 0) return false;
  constexpr std::string_view kMark = ".rank";
  const std::size_t at = name->model.rfind(kMark);
  if (at == std::string::npos || at == 0) return false;
  const std::string_view rank = std::string_view(name->model).substr(at + kMark.size());
  return !rank.empty() && rank.find_first_not_of("0123456789") == std::string_view::npos;
}

bool are_shares(const std::string& text) {
  const auto document = parse_json(text);
  return document && document->is_array() && std::ranges::all_of(*document, is_share);
}

bool is_list(const std::string& text) {
  const auto document = parse_json(text);
  return document && document->is_array();
}

bool is_own(const std::string& key) { return key.starts_with(kOwnTagsBegin); }

/// Nothing when the tag is good, or none of Freshet's own.
std::string wrong_with(const std::string& key, const std::string& value) {
  if (!is_own(key)) return {};
  if (key == kTiedTag) return tied_in(value) ? "" : "it is no JSON object of tensors' names";
  if (key == kOptimizersTag) return printable(value) == value ? "" : "it is no list of classes";
  if (key == kSchedulersTag) return is_list(value) ? "" : "it is no JSON list of schedulers";
  if (key == kPartsTag) return are_shares(value) ? "" : "it is no JSON list of shares MODEL.rankK@V";
  if (key == kPartOfTag) return check_model_name(value) ? "" : "it is no model's name";
  return "Freshet has no such tag";
}

}  // namespace

Status check_own_tags(const Tags& tags) {
  for (const auto& [key, value] : tags) {
    const std::string wrong = wrong_with(key, value);
    if (wrong.empty()) continue;
    return fail(Code::invalid_argument, format("tag {}: {}; names that begin with {} are Freshet's own, use another",
                                               shown(key), wrong, kOwnTagsBegin));
  }
  return {};
}

void drop_bad_own_tags(Tags& tags) {
  std::erase_if(tags, [](const auto& tag) { return !wrong_with(tag.first, tag.second).empty(); });
}

std::vector<std::string> drop_own_tags_of_file(Tags& tags, std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names;
  const auto may_stay = [&](const auto& tag) {
    const auto tied = tag.first == kTiedTag ? tied_in(tag.second) : std::nullopt;
    if (!tied) return false;
    for (const TensorView& tensor : tensors) names.insert(tensor.spec.name);
    return std::ranges::all_of(
        *tied, [&](const auto& pair) { return !names.contains(pair.first) && names.contains(pair.second); });
  };
  std::vector<std::string> dropped;
  std::erase_if(tags, [&](const auto& tag) {
    if (!is_own(tag.first) || may_stay(tag)) return false;
    dropped.push_back(tag.first);
    return true;
  });
  return dropped;
}

}  // namespace freshet
