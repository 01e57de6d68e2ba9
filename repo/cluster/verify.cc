// SPDX-License-Identifier: Apache-2.0
/// Checking over several providers: each one for itself, and what they say of each other; and making that good.

#include <algorithm>
#include <set>

#include "core/base/digest.h"
#include "core/base/format.h"
#include "repo/cluster/check/reference_check.h"
#include "repo/cluster/impl.h"

namespace freshet {
namespace {

using cluster::ListNeeds;
using cluster::Need;
using cluster::ReferenceFindings;

std::string id_at(const ClusterView& view, std::size_t provider) { return view.members[provider]->provider().id; }

/// Of a segment that is read to be proved, however long its owner says that it is.
constexpr std::uint64_t kProvedPieceBytes = std::uint64_t{64} << 20;

Status prove(const MemberPointer& keeper, const SegmentName& segment, std::uint64_t bytes, const Digest& digest) {
  return keeper->ask([&](ProviderRepository& at) -> Status {
    const auto label = [&](Error error) {
      return fail(std::move(error).with_context("segment " + to_string(segment)));
    };
    std::vector<std::byte> piece;
    DigestStream stream;
    for (std::uint64_t offset = 0; offset == 0 || offset < bytes; offset += kProvedPieceBytes) {
      piece.resize(static_cast<std::size_t>(std::min(bytes - offset, kProvedPieceBytes)));
      Status read = at.read_segment_range(segment, offset, piece);
      if (!read) return label(std::move(read).error());
      stream.update(piece);
    }
    if (stream.finish() == digest) return {};
    return label(Error(Code::corrupt, "its bytes do not match its digest"));
  });
}

// A reference that was lost is damage even while the bytes are there: nothing keeps them. Those that are not any more
// are told one by one.
Status tell_of(const ClusterView& view, const Need& need, VerifyReport& report) {
  std::set<std::string> damaged;
  for (const VerifyReport::Corrupt& one : report.corrupt) {
    if (one.version == need.version) damaged.insert(one.tensor);
  }
  std::vector<const Need::Tensor*> kept;
  for (const Need::Tensor& tensor : need.unknown) {
    if (damaged.contains(tensor.name)) continue;
    const Status read = prove(view.members[need.provider], tensor.segment, tensor.bytes, tensor.digest);
    if (!read && is_away(read.error())) return read;
    if (read) {
      kept.push_back(&tensor);
    } else {
      report.corrupt.push_back({.version = need.version, .tensor = tensor.name, .reason = read.error().message()});
    }
  }
  if (kept.empty()) return {};
  report.corrupt.push_back(
      {.version = need.version,
       .tensor = kept.front()->name,
       .reason = format("provider {} has lost its record that this version needs segment {}{}; its bytes are there, "
                        "and would go with their writer: verify --repair",
                        id_at(view, need.provider), to_string(kept.front()->segment),
                        kept.size() == 1 ? std::string() : format(" and {} more", kept.size() - 1))});
  return {};
}

Status compare_references(const ClusterRepository::Impl& impl, const ClusterView& view,
                          const std::optional<VersionName>& only, VerifyReport& report) {
  FRESHET_ASSIGN(const ReferenceFindings found, check_references(impl, view, ListNeeds::unknown, only));
  // What hides a part from the comparison is damage itself, and mostly told of by its provider.
  if (!found.notes.empty() && report.corrupt.empty()) {
    VerifyReport::Corrupt& one = report.corrupt.emplace_back();
    one.record = "the providers' references to each other";
    one.reason = found.notes.front();
  }
  for (const Need& need : found.needs) FRESHET_TRY(tell_of(view, need, report));
  for (const cluster::StrayReference& stray : found.strays) {
    report.unneeded.push_back(
        {.what = format("the references of version {} at provider {} ({} segments)", to_string(stray.version),
                        id_at(view, stray.provider), stray.segments),
         .bytes = 0,
         .reason = "a running put made them, or an unfinished one; gc drops those of an unfinished one"});
  }
  return {};
}

}  // namespace

Result<RepairReport> ClusterRepository::repair() {
  const std::shared_ptr<const ClusterView> now = impl_->refresh();
  FRESHET_ASSIGN(ReferenceFindings found, check_references(*impl_, *now, ListNeeds::all, std::nullopt));
  RepairReport report;
  report.notes = std::move(found.notes);
  for (const Need& told : cluster::restore_references(*now, std::move(found.needs), report.notes).told) {
    report.repaired.push_back({.version = told.version,
                               .tensor = told.unknown.front().name,
                               .tensors = told.unknown.size(),
                               .provider = id_at(*now, told.provider)});
  }
  return report;
}

Result<VerifyReport> ClusterRepository::verify(const std::optional<VersionName>& name, const Progress& progress) const {
  const std::shared_ptr<const ClusterView> now = impl_->refresh();
  if (!name) {
    VerifyReport sum;
    for (const MemberPointer& member : now->members) {
      FRESHET_ASSIGN(VerifyReport report,
                     member->ask([&](ProviderRepository& at) { return at.verify(std::nullopt, progress); }));
      sum.checked_bytes += report.checked_bytes;
      const std::string at = format(" (provider {})", member->provider().id);
      for (VerifyReport::Corrupt& one : report.corrupt) {
        if (!one.record.empty()) one.record += at;
        sum.corrupt.push_back(std::move(one));
      }
      for (VerifyReport::Unneeded& one : report.unneeded) {
        one.what += at;
        sum.unneeded.push_back(std::move(one));
      }
    }
    FRESHET_TRY(compare_references(*impl_, *now, std::nullopt, sum));
    return sum;
  }

  FRESHET_ASSIGN(const Impl::Fetched fetched, impl_->fetch(*name));
  const Manifest& manifest = fetched.record.manifest;
  FRESHET_ASSIGN(VerifyReport report,
                 fetched.home->ask([&](ProviderRepository& at) { return at.verify(manifest.name, progress); }));
  if (!fetched.record.placed) return report;
  for (const std::uint32_t tensor : fetched.record.placed->elsewhere) {
    const TensorSpec& spec = manifest.architecture->tensors()[tensor];
    FRESHET_ASSIGN(const MemberPointer place, impl_->place_of(fetched.record, fetched.home, tensor));
    const Status read = prove(place, manifest.owners[tensor], spec.bytes(), manifest.digests[tensor]);
    if (!read && is_away(read.error())) return fail(read.error());
    if (!read) {
      report.corrupt.push_back({.version = manifest.name, .tensor = spec.name, .reason = read.error().message()});
    }
    report.checked_bytes += spec.bytes();
  }
  FRESHET_TRY(compare_references(*impl_, *now, manifest.name, report));
  return report;
}

}  // namespace freshet
