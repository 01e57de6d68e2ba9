// SPDX-License-Identifier: Apache-2.0
#include "repo/files/import.h"

#include <sys/random.h>

#include <cerrno>
#include <map>
#include <unordered_map>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/model/own_tags.h"
#include "repo/local/side_by_side.h"

namespace freshet {
namespace {

constexpr std::size_t kDigestThreads = 2;

using Given = std::map<std::string_view, const TensorView*>;

Result<Given> given_by_name(std::span<const TensorView> tensors) {
  Given given;
  for (const TensorView& tensor : tensors) {
    FRESHET_TRY(tensor.spec.check());
    FRESHET_TRY(check_readable_by_host(tensor));
    if (tensor.data.size() != tensor.spec.bytes()) {
      return fail(Code::invalid_argument, format("tensor {}: {} bytes were given for {}", tensor.spec.name,
                                                 tensor.data.size(), tensor.spec.bytes()));
    }
    if (!given.emplace(tensor.spec.name, &tensor).second) {
      return fail(Code::invalid_argument, format("tensor {} was given twice", tensor.spec.name));
    }
  }
  return given;
}

bool same_type(const TensorSpec& a, const TensorSpec& b) { return a.dtype == b.dtype && a.shape == b.shape; }

bool has_all(const Architecture& architecture, const Given& given) {
  for (const auto& [name, view] : given) {
    const auto tensor = architecture.tensor_named(name);
    if (!tensor || !same_form(architecture.tensors()[*tensor], view->spec)) return false;
  }
  return true;
}

Result<std::shared_ptr<const Architecture>> architecture_for(const StageRequest& request, const Given& given,
                                                             const VersionRecord* ancestor) {
  if (request.architecture != nullptr) return request.architecture;
  if (!request.tensors || given.empty()) {
    return fail(Code::invalid_argument, "it has neither a graph nor a tensor");
  }
  if (ancestor != nullptr && ancestor->has_weights) {
    const auto& known = ancestor->manifest.architecture;
    if (known->parts().guessed && has_all(*known, given)) return known;
  }
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : *request.tensors) specs.push_back(tensor.spec);
  return Architecture::guess_chain(std::move(specs));
}

/// For each tensor of a graph, the ancestor's tensor that stands at the same place of the longest common prefix.
class Inheritance {
 public:
  Inheritance(const Architecture& graph, const VersionRecord* ancestor) : of_(graph.tensors().size()) {
    if (ancestor == nullptr || !ancestor->has_weights) return;
    const Architecture& other = *ancestor->manifest.architecture;
    std::unordered_map<SlotId, const Layer*> layers;
    for (std::size_t i = 0; i < other.layers().size(); ++i) layers.emplace(other.slots()[i], &other.layers()[i]);
    for (std::size_t i = 0; i < graph.layers().size(); ++i) {
      const auto found = layers.find(graph.slots()[i]);
      if (found != layers.end()) match(graph, graph.layers()[i], other, *found->second);
    }
  }

  std::optional<std::uint32_t> of(std::uint32_t tensor) const { return of_[tensor]; }

 private:
  // Equal slot ids promise equal global shapes, and no more: the ancestor may be cut into other slices.
  void match(const Architecture& graph, const Layer& layer, const Architecture& other, const Layer& there) {
    for (const LayerTensor& tensor : layer.tensors) {
      for (const LayerTensor& candidate : there.tensors) {
        if (candidate.name != tensor.name) continue;
        if (!same_form(graph.tensors()[tensor.tensor], other.tensors()[candidate.tensor])) continue;
        of_[tensor.tensor] = candidate.tensor;
      }
    }
  }

  std::vector<std::optional<std::uint32_t>> of_;
};

Status check_known(const Architecture& architecture, const Given& given) {
  for (const auto& [name, view] : given) {
    if (architecture.tensor_named(name)) continue;
    return fail(Code::invalid_argument, format("tensor {} is not in the graph", name));
  }
  return {};
}

/// Of the tensors that are given. One pass over all bytes, on as many threads as reading memory keeps busy.
Result<std::vector<Digest>> digests_of(std::span<const TensorSpec> specs, const Given& given) {
  std::vector<Digest> digests(specs.size());
  const auto digest_one = [&](std::size_t tensor) -> Status {
    FRESHET_TRY(Interruption::check());
    const auto found = given.find(specs[tensor].name);
    if (found != given.end()) digests[tensor] = digest_of(found->second->data);
    return {};
  };
  FRESHET_TRY(run_side_by_side(specs.size(), kDigestThreads, digest_one));
  return digests;
}

/// Decides for each tensor whether it is inherited or the version's own.
Status stage_tensors(StagedPut& staged, const Given& given, const VersionRecord* ancestor) {
  Manifest& manifest = staged.manifest;
  const auto specs = manifest.architecture->tensors();
  const Inheritance inheritance(*manifest.architecture, ancestor);
  FRESHET_ASSIGN(const std::vector<Digest> digests, digests_of(specs, given));
  std::vector<SegmentName> owners;
  for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
    FRESHET_TRY(Interruption::check());
    const TensorSpec& spec = specs[tensor];
    const auto inherited = inheritance.of(tensor);
    const auto found = given.find(spec.name);
    if (found == given.end() && !inherited) {
      const char* hint = ancestor != nullptr ? " and does not lie in the common prefix with the ancestor" : "";
      return fail(Code::invalid_argument, format("tensor {} is missing{}", spec.name, hint));
    }
    if (found != given.end() && !same_type(spec, found->second->spec)) {
      const TensorSpec& file = found->second->spec;
      return fail(Code::invalid_argument, format("tensor {} is {}; the graph has {}", spec.name,
                                                 describe(file.dtype, file.shape), describe(spec.dtype, spec.shape)));
    }
    const Digest digest = found != given.end() ? digests[tensor] : ancestor->manifest.digests[*inherited];
    if (inherited && digest == ancestor->manifest.digests[*inherited]) {
      owners.push_back(ancestor->manifest.owners[*inherited]);
      staged.inherited_bytes += spec.bytes();
    } else {
      owners.push_back({.writer = manifest.id, .tensor = tensor});
      staged.own_bytes += spec.bytes();
    }
    staged.bytes.push_back(found != given.end() ? std::optional(found->second->data) : std::nullopt);
    manifest.digests.push_back(digest);
  }
  manifest.owners = OwnerMap(std::move(owners));
  return {};
}

}  // namespace

std::function<Result<Bytes>(std::uint32_t tensor)> StagedPut::bytes_of() const {
  return [this](std::uint32_t tensor) -> Result<Bytes> {
    if (!bytes[tensor]) return fail(Code::corrupt, "the ancestor's bytes are not stored");
    return *bytes[tensor];
  };
}

Result<VersionId> draw_version_id() {
  VersionId id{.run = {}, .incarnation = 1, .sequence = 1};
  if (::getrandom(&id.run, sizeof(id.run), 0) != static_cast<ssize_t>(sizeof(id.run))) {
    return fail_errno(errno, "draw a run's name");
  }
  return id;
}

Result<StagedPut> stage_put(const Repository& repository, const StageRequest& request) {
  FRESHET_TRY(check_model_name(request.model));
  std::optional<VersionRecord> fetched;
  if (request.ancestor && request.ancestor_record == nullptr) {
    FRESHET_ASSIGN(fetched, repository.get(*request.ancestor));
  }
  const VersionRecord* const ancestor = fetched ? &*fetched : request.ancestor_record;
  FRESHET_ASSIGN(const Given given, given_by_name(request.tensors.value_or(std::span<const TensorView>())));

  StagedPut staged;
  Manifest& manifest = staged.manifest;
  manifest.name.model = request.model;
  FRESHET_ASSIGN(manifest.id, draw_version_id());
  FRESHET_ASSIGN(manifest.architecture, architecture_for(request, given, ancestor));
  FRESHET_TRY(check_known(*manifest.architecture, given));
  if (ancestor != nullptr) {
    manifest.ancestor = ancestor->manifest.id;
    manifest.ancestor_name = ancestor->manifest.name;
  }
  manifest.step = request.step;
  manifest.metrics = request.metrics;
  FRESHET_TRY(check_own_tags(request.tags));
  manifest.tags = request.tags;
  manifest.created_unix_ns = (request.clock != nullptr ? *request.clock : system_clock()).unix_ns();
  staged.options = {.quality = request.quality,
                    .has_weights = request.tensors.has_value(),
                    .dedup = request.dedup,
                    .deltas = request.deltas,
                    .placed = {},
                    .drawn_id = true};
  if (request.tensors) {
    FRESHET_TRY(stage_tensors(staged, given, ancestor));
  } else {
    const std::size_t tensors = manifest.architecture->tensors().size();
    manifest.owners = OwnerMap::all_written_by(manifest.id, tensors);
    manifest.digests.assign(tensors, Digest{});
    staged.bytes.resize(tensors);
  }
  return staged;
}

Result<StoredPut> stage_and_put(Repository& repository, const StageRequest& request, const ModelFile* file) {
  FRESHET_ASSIGN(const StagedPut staged, stage_put(repository, request));
  // From here on the digests tell a changed file.
  if (file != nullptr) FRESHET_TRY(file->check_unchanged());
  Result<VersionName> put = repository.put(staged.manifest, staged.bytes_of(), staged.options);
  if (!put && file != nullptr) {
    // With the repository's words: they may be that nobody knows whether the version exists.
    const Status unchanged = file->check_unchanged();
    const auto both = [&] { return format("{}; {}", unchanged.error().message(), put.error().message()); };
    if (!unchanged) return fail(unchanged.error().code(), both());
  }
  StoredPut stored{.own_bytes = staged.own_bytes, .inherited_bytes = staged.inherited_bytes};
  FRESHET_ASSIGN(stored.name, std::move(put));
  if (request.dedup) {
    FRESHET_ASSIGN(const VersionRecord record, repository.get(stored.name));
    stored.own_bytes = record.own_bytes;
    stored.inherited_bytes = record.inherited_bytes;
  }
  return stored;
}

}  // namespace freshet
