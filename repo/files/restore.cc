// SPDX-License-Identifier: Apache-2.0
/// Versions that were exported, put back as they were.

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/base/format.h"
#include "core/model/own_tags.h"
#include "repo/files/import.h"

namespace freshet {
namespace {

using GivenTensors = std::unordered_map<std::string_view, const TensorView*>;

Result<GivenTensors> wanted_by_name(const std::vector<std::string>& wanted, std::span<const TensorView> tensors) {
  GivenTensors given;
  for (const TensorView& tensor : tensors) given.emplace(tensor.spec.name, &tensor);
  for (const std::string& name : wanted) {
    if (given.count(name) == 0) return fail(Code::corrupt, format("tensor {} was exported, and is not there", name));
  }
  // Names that stand twice on either side make these differ, too.
  if (given.size() != wanted.size() || tensors.size() != wanted.size()) {
    return fail(Code::corrupt, format("{} tensors were exported, {} are there", wanted.size(), tensors.size()));
  }
  return given;
}

Result<std::shared_ptr<const Architecture>> architecture_of(const RestoreRequest& request, const GivenTensors& given) {
  std::shared_ptr<const Architecture> graph = request.architecture;
  if (graph == nullptr) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : request.sheet->tensors) specs.push_back(given.at(name)->spec);
    FRESHET_ASSIGN(graph, Architecture::guess_chain(std::move(specs)));
  }
  if (graph->digest() == request.sheet->architecture) return graph;
  return fail(Code::corrupt, request.architecture == nullptr ? "its graph file is missing: the export had one"
                                                             : "its graph differs from the exported one");
}

Status check_bytes(const VersionSheet& sheet, const Architecture& graph, const GivenTensors& given) {
  const auto specs = graph.tensors();
  if (specs.size() != sheet.tensors.size()) {
    return fail(Code::corrupt, format("{} tensors were exported of a graph of {}", sheet.tensors.size(), specs.size()));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name != sheet.tensors[i]) {
      return fail(Code::corrupt,
                  format("tensor {} was exported, and the graph has {} there", sheet.tensors[i], specs[i].name));
    }
    const TensorView& tensor = *given.at(specs[i].name);
    const bool same_kind = tensor.spec.dtype == specs[i].dtype && tensor.spec.shape == specs[i].shape;
    if (!same_kind || tensor.data.size() != specs[i].bytes() || digest_of(tensor.data) != sheet.manifest.digests[i]) {
      return fail(Code::corrupt, format("tensor {} differs from the exported one", specs[i].name));
    }
  }
  return {};
}

/// One that is here already.
Result<Restored> what_is_there(const Repository& repository, const VersionName& name, const VersionSheet& sheet) {
  const Result<VersionRecord> record = repository.get(name);
  if (!record && record.error().code() == Code::not_found) {
    return fail(Code::failed_precondition, format("it was retired here, as {}", to_string(name)));
  }
  if (!record) return fail(record.error());
  const Manifest& there = record->manifest;
  if (there.id != sheet.manifest.id || there.architecture->digest() != sheet.architecture ||
      record->has_weights != sheet.has_weights || (sheet.has_weights && there.digests != sheet.manifest.digests)) {
    return fail(Code::already_exists, format("another version has its identity here: {}", to_string(name)));
  }
  return Restored{
      .name = name, .was_there = true, .own_bytes = record->own_bytes, .inherited_bytes = record->inherited_bytes};
}

/// The ancestor goes by the name that it has here.
Status name_ancestor(const Repository& repository, Manifest& manifest) {
  if (!manifest.ancestor) return {};
  FRESHET_ASSIGN(const std::optional<VersionName> here, repository.find(*manifest.ancestor));
  if (here) {
    manifest.ancestor_name = *here;
    return {};
  }
  if (manifest.ancestor_name.number == 0) return {};
  // Where that name is another version's, it would mislead.
  const Result<VersionRecord> other = repository.get(manifest.ancestor_name);
  if (other) manifest.ancestor_name = {};
  return {};
}

/// Which may come next: those whose model's smaller numbers have come, and of these first who waits for no ancestor.
class RestoreOrder {
 public:
  explicit RestoreOrder(std::span<const RestorePlace> places) : places_(places), before_(places.size()) {
    std::vector<std::size_t> by_number(places.size());
    std::iota(by_number.begin(), by_number.end(), std::size_t{0});
    std::ranges::stable_sort(by_number, {}, [&](std::size_t at) { return places[at].name; });
    for (std::size_t i = 1; i < by_number.size(); ++i) {
      if (places[by_number[i]].name.model == places[by_number[i - 1]].name.model) {
        lead(by_number[i - 1], by_number[i], &Before::number);
      }
    }
    std::unordered_map<VersionId, std::size_t> known;
    for (std::size_t at = 0; at < places.size(); ++at) known.emplace(places[at].id, at);
    for (std::size_t at = 0; at < places.size(); ++at) {
      const auto ancestor = places[at].ancestor ? known.find(*places[at].ancestor) : known.end();
      if (ancestor != known.end() && ancestor->second != at) lead(ancestor->second, at, &Before::ancestor);
    }
    for (std::size_t at = 0; at < places.size(); ++at) settle(at);
  }

  std::vector<std::size_t> take_all() {
    std::vector<std::size_t> order;
    while (!ready_.empty() || !waiting_.empty()) {
      // Where ancestors and numbers contradict each other, numbers go first.
      auto& from = ready_.empty() ? waiting_ : ready_;
      const std::size_t at = std::get<2>(*from.begin());
      from.erase(from.begin());
      before_[at].taken = true;
      order.push_back(at);
      for (const std::size_t next : before_[at].leads_to_number) {
        before_[next].number = false;
        settle(next);
      }
      for (const std::size_t next : before_[at].leads_to_child) {
        before_[next].ancestor = false;
        settle(next);
      }
    }
    return order;
  }

 private:
  using Key = std::tuple<std::int64_t, VersionName, std::size_t>;
  struct Before {
    bool number = false;
    bool ancestor = false;
    bool taken = false;
    std::vector<std::size_t> leads_to_number;
    std::vector<std::size_t> leads_to_child;
  };

  void lead(std::size_t from, std::size_t to, bool Before::*why) {
    before_[to].*why = true;
    (why == &Before::number ? before_[from].leads_to_number : before_[from].leads_to_child).push_back(to);
  }

  void settle(std::size_t at) {
    const Before& before = before_[at];
    if (before.taken || before.number) return;
    const Key key{places_[at].created_unix_ns, places_[at].name, at};
    if (before.ancestor) {
      waiting_.insert(key);
    } else {
      waiting_.erase(key);
      ready_.insert(key);
    }
  }

  const std::span<const RestorePlace> places_;
  std::vector<Before> before_;
  std::set<Key> ready_;
  std::set<Key> waiting_;
};

}  // namespace

std::vector<std::size_t> restore_order(std::span<const RestorePlace> places) { return RestoreOrder(places).take_all(); }

Result<Restored> restore_version(Repository& repository, const RestoreRequest& request) {
  const VersionSheet& sheet = *request.sheet;
  if (sheet.has_weights != request.tensors.has_value()) {
    return fail(Code::invalid_argument,
                sheet.has_weights ? "its file of weights is missing" : "it was exported without weights");
  }
  if (!sheet.has_weights && request.architecture == nullptr) {
    return fail(Code::corrupt, "its graph file is missing: the export had one");
  }
  const auto tensors = request.tensors.value_or(std::span<const TensorView>());
  FRESHET_ASSIGN(const GivenTensors given, wanted_by_name(sheet.tensors, tensors));
  Manifest manifest = sheet.manifest;
  drop_bad_own_tags(manifest.tags);  // Anybody can write a sheet.
  FRESHET_ASSIGN(manifest.architecture, architecture_of(request, given));
  if (sheet.has_weights) {
    FRESHET_TRY(check_bytes(sheet, *manifest.architecture, given));
  } else {
    const std::size_t count = manifest.architecture->tensors().size();
    manifest.owners = OwnerMap::all_written_by(manifest.id, count);
    manifest.digests.assign(count, Digest{});
  }
  FRESHET_TRY(check(manifest));
  FRESHET_ASSIGN(const std::optional<VersionName> there, repository.find(manifest.id));
  if (there) return what_is_there(repository, *there, sheet);
  FRESHET_TRY(name_ancestor(repository, manifest));
  Restored restored;
  for (std::size_t i = 0; sheet.has_weights && i < manifest.owners.size(); ++i) {
    const std::uint64_t bytes = manifest.architecture->tensors()[i].bytes();
    (manifest.owners[i].writer == manifest.id ? restored.own_bytes : restored.inherited_bytes) += bytes;
  }
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> { return given.at(sheet.tensors[tensor])->data; };
  FRESHET_ASSIGN(restored.name, repository.put(manifest, bytes_of,
                                               {.quality = sheet.quality,
                                                .has_weights = sheet.has_weights,
                                                .deltas = request.deltas,
                                                .ancestor_may_be_retired = true}));
  return restored;
}

}  // namespace freshet
