// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/put_uploads.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/format.h"

namespace freshet::rpc {
namespace {

/// How often tensors are asked for in one put.
constexpr int kUploadsMax = 8;

std::shared_ptr<Upload> upload_for(std::vector<Upload::Part> parts, std::shared_ptr<const UploadPlan> plan) {
  return std::make_shared<Upload>(std::move(parts), std::move(plan));
}

/// What stays of a PutParts while their bytes come.
struct PartsPlan final : UploadPlan {
  Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) const override {
    std::vector<TensorPart> whole = parts;
    Status taken;
    for (std::uint32_t i = 0; i < whole.size() && taken; ++i) {
      Result<Bytes> bytes = upload.bytes_of(i);
      if (bytes) whole[i].bytes = *bytes;
      if (!bytes) taken = fail(std::move(bytes).error());
    }
    if (taken) taken = repository.part_puts().put_parts(token, whole);
    if (!taken) return {.reply = failure(request, taken.error()), .upload = nullptr};
    return {.reply = answer_to<PutParts>(request), .upload = nullptr};
  }

  PutToken token;
  std::vector<TensorPart> parts;  ///< Without their bytes.
  std::shared_ptr<const void> open;
};

}  // namespace

Result<std::shared_ptr<Upload>> upload_of_parts(const PutToken& token, std::vector<TensorPart> parts,
                                                std::shared_ptr<const void> open) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 40;
  std::vector<Upload::Part> uploads;
  std::uint64_t total = 0;
  for (const TensorPart& part : parts) {
    const bool is_sane = part.length != 0 && part.count != 0 && part.length <= (kBytesMax - total) / part.count;
    if (!is_sane || uploads.size() == kRangesMax) {
      return fail(Code::invalid_argument, "the parts are too many or too large, or have no bytes");
    }
    total += part.length * part.count;
    uploads.push_back({.tensor = static_cast<std::uint32_t>(uploads.size()), .bytes = part.length * part.count});
  }
  if (uploads.empty()) return fail(Code::invalid_argument, "no parts");
  auto plan = std::make_shared<PartsPlan>();
  plan->token = token;
  plan->parts = std::move(parts);
  plan->open = std::move(open);
  return upload_for(std::move(uploads), std::move(plan));
}

Result<Stored> upload_or_store(ProviderRepository& repository, PutPlan plan) {
  std::unordered_set<std::uint32_t> brought;
  for (const BroughtTensor& one : plan.brought) brought.insert(one.tensor);
  for (; plan.uploads < kUploadsMax; ++plan.uploads) {
    std::vector<Upload::Part> parts;
    if (plan.options.has_weights) {
      FRESHET_ASSIGN(const std::vector<std::uint32_t> tensors, repository.wanted(plan.manifest, plan.options));
      for (const std::uint32_t tensor : tensors) {
        if (brought.contains(tensor)) continue;
        parts.push_back({.tensor = tensor, .bytes = plan.manifest.architecture->tensors()[tensor].bytes()});
      }
    }
    const OwnerMap& owners = plan.manifest.owners;
    std::sort(parts.begin(), parts.end(),
              [&](const auto& a, const auto& b) { return owners[a.tensor] < owners[b.tensor]; });
    if (!parts.empty()) {
      ++plan.uploads;
      auto kept = std::make_shared<const PutPlan>(std::move(plan));
      return Stored{.upload = upload_for(std::move(parts), std::move(kept)), .name = {}};
    }
    bool lacked = false;
    const auto nothing = [&](std::uint32_t tensor) -> Result<Bytes> {
      lacked = true;
      return fail(Code::unavailable, format("tensor {} went away meanwhile; put it again", tensor));
    };
    Result<VersionName> name = repository.put_brought(plan.manifest, nothing, plan.options, plan.brought);
    if (name) return Stored{.upload = nullptr, .name = std::move(*name)};
    if (!lacked || plan.uploads + 1 == kUploadsMax) return fail(std::move(name).error());
    plan.brought.clear();  // Not all of it is there.
    brought.clear();
  }
  return fail(Code::unavailable, "versions that it inherits from are retired again and again; put it again");
}

Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) {
  return static_cast<const UploadPlan*>(upload.plan().get())->store(repository, request, upload);
}

Outcome PutPlan::store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) const {
  bool lacked = false;
  const auto bytes_of = [&](std::uint32_t tensor) {
    Result<Bytes> bytes = upload.bytes_of(tensor);
    if (bytes || bytes.error().code() != Code::not_found) return bytes;
    lacked = true;
    return Result<Bytes>(
        fail(Code::unavailable, format("tensor {} went away while the others came; put it again", tensor)));
  };
  Result<VersionName> name = repository.put_brought(manifest, bytes_of, options, brought);
  if (!name && lacked && uploads < kUploadsMax) {
    PutPlan whole = *this;
    whole.brought.clear();  // It may be that it is not there.
    Result<Stored> again = upload_or_store(repository, std::move(whole));
    if (again && again->upload != nullptr) return {.reply = {}, .upload = std::move(again->upload)};
    name = again ? Result<VersionName>(std::move(again->name)) : fail(std::move(again).error());
  }
  if (!name) return {.reply = failure(request, name.error()), .upload = nullptr};
  return {.reply = answer_to<Put>(request, *name), .upload = nullptr};
}

}  // namespace freshet::rpc
