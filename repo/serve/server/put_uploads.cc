// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/put_uploads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "repo/serve/server/answers.h"

namespace freshet::rpc {
namespace {

/// How often tensors are asked for in one put.
constexpr int kUploadsMax = 8;

}  // namespace

Result<Stored> upload_or_store(ProviderRepository& repository, PutPlan plan) {
  for (; plan.uploads < kUploadsMax; ++plan.uploads) {
    std::vector<Upload::Part> parts;
    if (plan.options.has_weights) {
      FRESHET_ASSIGN(const std::vector<std::uint32_t> tensors, repository.wanted(plan.manifest, plan.options));
      for (const std::uint32_t tensor : tensors) {
        parts.push_back({.tensor = tensor, .bytes = plan.manifest.architecture->tensors()[tensor].bytes()});
      }
    }
    const OwnerMap& owners = plan.manifest.owners;
    std::sort(parts.begin(), parts.end(),
              [&](const auto& a, const auto& b) { return owners[a.tensor] < owners[b.tensor]; });
    if (!parts.empty()) {
      ++plan.uploads;
      auto kept = std::make_shared<const PutPlan>(std::move(plan));
      return Stored{.upload = std::make_shared<Upload>(std::move(parts), std::move(kept)), .name = {}};
    }
    bool lacked = false;
    const auto nothing = [&](std::uint32_t tensor) -> Result<Bytes> {
      lacked = true;
      return fail(Code::unavailable, format("tensor {} went away meanwhile; put it again", tensor));
    };
    Result<VersionName> name = repository.put(plan.manifest, nothing, plan.options);
    if (name) return Stored{.upload = nullptr, .name = std::move(*name)};
    if (!lacked || plan.uploads + 1 == kUploadsMax) return fail(std::move(name).error());
  }
  return fail(Code::unavailable, "versions that it inherits from are retired again and again; put it again");
}

Outcome store(ProviderRepository& repository, std::uint64_t request, const Upload& upload) {
  const auto& plan = *static_cast<const PutPlan*>(upload.plan().get());
  bool lacked = false;
  const auto bytes_of = [&](std::uint32_t tensor) {
    Result<Bytes> bytes = upload.bytes_of(tensor);
    if (bytes || bytes.error().code() != Code::not_found) return bytes;
    lacked = true;
    return Result<Bytes>(
        fail(Code::unavailable, format("tensor {} went away while the others came; put it again", tensor)));
  };
  Result<VersionName> name = repository.put(plan.manifest, bytes_of, plan.options);
  if (!name && lacked && plan.uploads < kUploadsMax) {
    Result<Stored> again = upload_or_store(repository, plan);
    if (again && again->upload != nullptr) return {.reply = {}, .upload = std::move(again->upload)};
    name = again ? Result<VersionName>(std::move(again->name)) : fail(std::move(again).error());
  }
  if (!name) return {.reply = failure(request, name.error()), .upload = nullptr};
  Builder builder;
  return {.reply = reply(builder, request, wire::CreateNamed(builder, put(builder, *name))), .upload = nullptr};
}

}  // namespace freshet::rpc
