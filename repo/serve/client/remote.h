// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The client's side of every question (repo/serve/remote_repository.h): private to this folder. Most are a line here.
/// Questions that need more than a line are in remote_questions.cc, how tensors travel is in remote_bytes.cc, and how
/// parts of puts do is in remote_parts.cc.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "repo/pins/pin_renewal.h"
#include "repo/provider_repository.h"
#include "repo/serve/client/bulk_reader.h"
#include "repo/serve/client/direct_line.h"
#include "repo/serve/client/direct_puts.h"
#include "repo/serve/client/direct_reads.h"
#include "repo/serve/client/link.h"
#include "repo/serve/client/owner_link.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// The wait for a long call: as long as the server says that it is at work.
inline constexpr Duration kLong = std::chrono::hours(24);
/// Of so many owners a question that changes nothing is asked, each of which ended before it answered. A question that
/// ends its server does not end all of them.
inline constexpr int kOwnersAskedMax = 4;

class RemoteRepository final : public ProviderRepository, private PartPuts {
 public:
  RemoteRepository(Link::Options link_options, RemoteRepositoryOptions options, BulkReader::Options bulk)
      : options_(std::move(options)),
        owner_(std::move(link_options), options_),
        has_channels_(!bulk.openers.empty()),
        bulk_(std::move(bulk)),
        line_(options_.direct, options_.signed_objects),
        direct_reads_(line_),
        direct_puts_(line_),
        renewal_([this](const PinLease& lease) { return renew_pins(lease); }, options_.renew_pins) {}
  Status connect() {
    FRESHET_ASSIGN(const auto opened, link());
    return {};
  }
  bool may_move() const { return owner_.may_move(); }

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          PutOptions options) override;
  PartPuts& part_puts() override { return *this; }
  Result<VersionRecord> get(const VersionName& name) const override { return call<AskRecord>(name); }
  Status annotate(const VersionName& name, const Annotations& annotations) override {
    if (annotations.tags.size() > kLaterTagsMax) {
      return fail(Code::out_of_space, format("more than {} tags were set after the put", kLaterTagsMax));
    }
    return call<Annotate>(name, annotations);
  }
  Result<VersionNumber> latest(const std::string& model) const override { return call<AskLatest>(model); }
  Result<std::optional<VersionName>> find(const VersionId& id) const override { return call<AskFind>(id); }
  Status read(const VersionRecord& record, std::span<const TensorRead> reads) const override;
  Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest, const PutOptions& options) const override;
  Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                    MutableBytes out) const override;
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override { return call<AskOwners>(name); }
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override { return call<AskLineage>(name); }
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override {
    return call<AskCommonAncestor>(a, b);
  }
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override {
    return call<AskDescendants>(name);
  }
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override {
    return call<AskContributors>(name);
  }
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override { return call<AskDiff>(a, b); }
  Result<std::vector<ModelRow>> model_rows() const override { return call<AskModels>(); }
  Result<std::vector<LineageRow>> versions(const std::string& model) const override { return call<AskVersions>(model); }
  Status pin(const VersionName& name, const std::string& by, const PinTerms& terms) override;
  Status unpin(const VersionName& name, const std::string& by, const PinTerms& terms) override {
    return call<Unpin>(name, by, PinTerms{.stays = false, .lease = terms.lease.value_or(renewal_.lease())});
  }
  Status renew_pins(const PinLease& lease) override;
  Result<std::vector<std::string>> pins(const VersionName& name) const override { return call<AskPins>(name); }
  Result<std::vector<PinnedVersion>> all_pins() const override { return call<AskAllPins>(); }
  Result<MatchAnswer> match(const MatchQuery& query) override;
  Status read_segments(std::span<const SegmentRead> reads) const override;
  Status read_segment_range(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const override;
  Result<bool> settle_put(const VersionId& id, std::uint64_t attempt) override { return call<SettlePut>(id, attempt); }
  Result<std::uint64_t> revive_segments(std::span<const SegmentContent> segments) override {
    return ask(call_of<ReviveSegments>(std::vector(segments.begin(), segments.end())), kLong);
  }
  Result<SharedRecord> shared_record(const std::string& key) const override { return call<AskShared>(key); }
  Result<std::vector<SharedRecord>> shared_records(const std::string& prefix, const std::string& after) const override {
    return call<ListShared>(prefix, after);
  }
  Status change_shared_records(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes) override;
  Status set_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                   VersionNumber desired) override {
    return call<SetAlias>(model, alias, expected, desired);
  }
  Status keep_for_alias(const std::string& model, const std::string& alias, std::optional<VersionNumber> expected,
                        VersionNumber desired) override {
    return call<KeepForAlias>(model, alias, expected, desired);
  }
  Result<std::vector<Alias>> aliases(const std::string& model) const override { return call<AskAliases>(model); }
  Result<RetireReport> retire(const VersionName& name, const RetireOptions& options) override;
  Result<GcReport> gc(const GcOptions& options, const Progress& progress) override;
  Status add_referrer(const ExternalReferrer& referrer) override { return call<AddReferrer>(referrer); }
  Status drop_referrer(const VersionId& version, std::uint64_t attempt) override {
    return call<DropReferrer>(version, attempt);
  }
  Result<std::vector<ExternalReferrer>> referrers() const override { return call<AskReferrers>(); }
  Result<RepositoryStat> stat() const override { return call<AskStat>(); }
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override {
    return ask(AskVerify{name}, kLong, progress);
  }

 private:
  // Puts by parts, in remote_parts.cc.
  Result<PutToken> begin_put(const std::string& model, const VersionId& id,
                             std::shared_ptr<const Architecture> architecture) override;
  Status put_parts(const PutToken& token, std::span<const TensorPart> parts) override;
  Result<std::vector<std::optional<Digest>>> part_digests(const PutToken& token) override {
    return ask(call_of<AskPartDigests>(token), kLong);
  }
  Result<VersionName> commit_put(const PutToken& token, const Manifest& manifest, PutOptions options) override;
  Status abort_put(const PutToken& token) override { return call<AbortPut>(token); }
  /// One upload of them, with a digest each.
  Status send_parts(const PutToken& token, std::span<const TensorPart> parts);

  struct Range {
    std::uint32_t tensor = 0;  ///< Or a segment by its name.
    SegmentName segment;
    std::uint64_t offset = 0;
    MutableBytes out;
  };
  using Ranges = std::vector<Range>;

  Result<std::shared_ptr<Link>> link() const { return owner_.get(); }

  /// Asks, and waits for the answer; the next owner when the connection is lost meanwhile and the question changes
  /// nothing.
  template <typename Question>
  Result<typename Question::Answer> ask(const Question& question, Duration at_most,
                                        const Progress& progress = {}) const;
  template <typename Question>
  Result<typename Question::Answer> ask(const Question& question) const {
    return ask(question, options_.answer);
  }
  template <typename Question, typename... Arguments>
  Result<typename Question::Answer> call(const Arguments&... arguments) const {
    return ask(call_of<Question>(arguments...));
  }
  Result<Response> last_answer(Conversation& conversation, Duration at_most, const Progress& progress) const;

  /// The tensors of a put, as its caller gives them.
  struct PutSource {
    const Manifest& manifest;
    const std::function<Result<Bytes>(std::uint32_t tensor)>& caller;
    /// Abandons the put when there are none, or not as many as the tensor has.
    Result<Bytes> bytes_of(Conversation& conversation, std::uint32_t tensor) const;
  };
  // What the server wants, unless it answers something else meanwhile, which is the result then.
  Result<std::optional<Response>> send_tensors(Conversation& conversation, const Invitation& invitation,
                                               const PutSource& source) const;
  /// An upload's window, and its progress.
  struct Sending {
    std::uint64_t credit = 0;
    std::uint64_t offset = 0;
  };
  static Result<std::optional<Response>> send_bytes(Conversation& conversation, Bytes bytes, Sending& sending);
  static Result<std::optional<Response>> more_credit(Conversation& conversation, std::uint64_t& credit);

  Status read_ranges(const VersionRecord& record, const Ranges& ranges) const;
  Status read_segment_ranges(const Ranges& ranges) const;
  /// Through a data channel, as far as that goes: what did not come is to be asked for otherwise.
  /// `make_lend()` asks for a lease on the parts, in their order.
  template <typename MakeLend>
  void fetch_in_bulk(std::vector<BulkPart>& parts, MakeLend make_lend) const;
  void fetch_version_in_bulk(const VersionRecord& record, const Ranges& ranges, std::vector<BulkPart>& parts) const;
  void fetch_segments_in_bulk(const Ranges& ranges, std::vector<BulkPart>& parts) const;
  static std::vector<BulkPart> parts_of(const Ranges& ranges, bool are_digested);
  static void append_ranges(Ranges& ranges, std::uint32_t tensor, const SegmentName& segment, std::uint64_t offset,
                            MutableBytes out);
  static std::span<const Range> next_batch(std::span<const Range> ranges);
  /// Several questions at once; `question_for(ranges)` is each. Asks the next owner for what did not come from one that
  /// ended meanwhile.
  template <typename QuestionFor>
  Status fetch(std::span<const Range> ranges, QuestionFor question_for) const;
  template <typename Question>
  static Status take_data(const Response& response, std::span<const Range> ranges);
  static std::vector<ByteRange> byte_ranges(std::span<const Range> ranges);
  static std::vector<SegmentRange> segment_ranges(std::span<const Range> ranges);

  const RemoteRepositoryOptions options_;
  mutable OwnerLink owner_;
  const bool has_channels_;
  mutable BulkReader bulk_;
  mutable DirectLine line_;
  mutable DirectReads direct_reads_;
  DirectPuts direct_puts_;
  /// Of the pins that are this object's own. Last, since its thread asks.
  PinRenewal renewal_;
};

template <typename Question>
Result<typename Question::Answer> RemoteRepository::ask(const Question& question, Duration at_most,
                                                        const Progress& progress) const {
  for (int owners = terms_of<Question>().changes ? 1 : kOwnersAskedMax;;) {
    FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
    Result<Conversation> conversation = connection->begin(question);
    const Result<Response> response =
        conversation ? last_answer(*conversation, at_most, progress) : Result<Response>(fail(conversation.error()));
    if (response) return answer_in<Question>(*response);
    if (!owner_.is_lost(*connection, response.error()) || --owners == 0) return fail(response.error());
  }
}

}  // namespace freshet::rpc
