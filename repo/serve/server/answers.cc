// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/answers.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/format.h"
#include "repo/serve/server/put_uploads.h"

namespace freshet::rpc {
namespace {

constexpr Duration kRetireWaitMax = std::chrono::seconds(5);
constexpr Duration kProgressPause = std::chrono::milliseconds(50);

/// One question on its way to its answer.
class Asked {
 public:
  Asked(const Answering& with, const wire::Request& question) : with_(with), question_(question) {}

  Outcome outcome() {
    Status answered = dispatch();
    if (!answered) return {.reply = failure(number(), answered.error()), .upload = nullptr};
    return std::move(outcome_);
  }

 private:
  std::uint64_t number() const { return question_.request(); }
  template <typename Body>
  Status say(Offset<Body> body) {
    outcome_.reply = reply(builder_, number(), body);
    return {};
  }
  template <typename Value>
  Status say_value(const Result<Value>& value) {
    if (!value) return fail(value.error());
    return say(put(builder_, *value));
  }
  Status say_done(Status status) { return status ? say(wire::CreateDone(builder_)) : status; }
  Status say_texts(const Result<std::vector<std::string>>& texts) {
    if (!texts) return fail(texts.error());
    return say(wire::CreateTexts(builder_, put(builder_, *texts)));
  }
  Status say_name(const Result<std::optional<VersionName>>& name) {
    if (!name) return fail(name.error());
    const auto offset = *name ? put(builder_, **name) : Offset<wire::Name>();
    return say(wire::CreateNamed(builder_, offset));
  }

  /// A question about the version that it names.
  template <typename Question, typename Ask>
  Status of_version(const Question& question, Ask asked) {
    FRESHET_ASSIGN(const VersionName name, read(question.name()));
    return say_value((repository().*asked)(name));
  }

  Status dispatch();
  template <typename Body>
  Status ask(const Body* body) {
    if (body == nullptr) return fail(Code::corrupt, "a question without its text");
    return work(*body);
  }

  Status work(const wire::Put& put);
  Status work(const wire::AskWanted& wanted);
  Status work(const wire::AskRecord& record);
  Status work(const wire::AskLatest& latest);
  Status work(const wire::AskFind& find);
  Status work(const wire::AskBytes& bytes);
  Status work(const wire::AskOwners& owners) { return of_version(owners, &Repository::owners); }
  Status work(const wire::AskLineage& lineage) { return of_version(lineage, &Repository::lineage); }
  Status work(const wire::AskCommonAncestor& common);
  Status work(const wire::AskDescendants& descendants) { return of_version(descendants, &Repository::descendants); }
  Status work(const wire::AskContributors& contributors) { return of_version(contributors, &Repository::contributors); }
  Status work(const wire::AskDiff& diff);
  Status work(const wire::AskModels&) { return say_texts(repository().models()); }
  Status work(const wire::AskVersions& versions) { return say_value(repository().versions(read(versions.model()))); }
  Status work(const wire::Pin& pin);
  Status work(const wire::AskPins& pins);
  Status work(const wire::RenewPins& renew);
  Status work(const wire::AskAllPins&) { return say_value(repository().all_pins()); }
  Status work(const wire::Annotate& annotate);
  Status work(const wire::AskStat&) { return say_value(repository().stat()); }
  Status work(const wire::AskVerify& verify);
  Status work(const wire::Match& match);
  Status work(const wire::SetAlias& alias);
  Status work(const wire::AskAliases& aliases) { return say_value(repository().aliases(read(aliases.model()))); }
  Status work(const wire::Retire& retire);
  Status work(const wire::Gc& gc);
  Status work(const wire::AddReferrer& add);
  Status work(const wire::DropReferrer& drop);
  Status work(const wire::AskReferrers&) { return say_value(repository().referrers()); }
  Status work(const wire::AskSegments& segments);
  Status work(const wire::SettlePut& settle);
  Status work(const wire::ReviveSegments& revive);
  Status work(const wire::AskShared& shared);
  Status work(const wire::ListShared& list);
  Status work(const wire::ChangeShared& change);
  Status work(const wire::Lend& lend);
  Status work(const wire::RenewLease& renew) { return say_done(with_.bulk.renew(with_.session, renew.lease())); }
  Status work(const wire::EndLease& end);
  Status work(const wire::BeginPut& begin);
  Status work(const wire::PutParts& parts);
  Status work(const wire::AskPartDigests& digests);
  Status work(const wire::CommitPut& commit);
  Status work(const wire::AbortPut& abort);

  ProviderRepository& repository() const { return with_.repository; }
  Progress progress() const;

  const Answering& with_;
  const wire::Request& question_;
  Builder builder_;
  Outcome outcome_;
};

Status Asked::dispatch() {
  switch (question_.body_type()) {
    case wire::Ask::Put: return ask(question_.body_as_Put());
    case wire::Ask::AskWanted: return ask(question_.body_as_AskWanted());
    case wire::Ask::AskRecord: return ask(question_.body_as_AskRecord());
    case wire::Ask::AskLatest: return ask(question_.body_as_AskLatest());
    case wire::Ask::AskFind: return ask(question_.body_as_AskFind());
    case wire::Ask::AskBytes: return ask(question_.body_as_AskBytes());
    case wire::Ask::AskOwners: return ask(question_.body_as_AskOwners());
    case wire::Ask::AskLineage: return ask(question_.body_as_AskLineage());
    case wire::Ask::AskCommonAncestor: return ask(question_.body_as_AskCommonAncestor());
    case wire::Ask::AskDescendants: return ask(question_.body_as_AskDescendants());
    case wire::Ask::AskContributors: return ask(question_.body_as_AskContributors());
    case wire::Ask::AskDiff: return ask(question_.body_as_AskDiff());
    case wire::Ask::AskModels: return ask(question_.body_as_AskModels());
    case wire::Ask::AskVersions: return ask(question_.body_as_AskVersions());
    case wire::Ask::Pin: return ask(question_.body_as_Pin());
    case wire::Ask::AskPins: return ask(question_.body_as_AskPins());
    case wire::Ask::RenewPins: return ask(question_.body_as_RenewPins());
    case wire::Ask::AskAllPins: return ask(question_.body_as_AskAllPins());
    case wire::Ask::Annotate: return ask(question_.body_as_Annotate());
    case wire::Ask::AskStat: return ask(question_.body_as_AskStat());
    case wire::Ask::AskVerify: return ask(question_.body_as_AskVerify());
    case wire::Ask::SetAlias: return ask(question_.body_as_SetAlias());
    case wire::Ask::AskAliases: return ask(question_.body_as_AskAliases());
    case wire::Ask::Retire: return ask(question_.body_as_Retire());
    case wire::Ask::Gc: return ask(question_.body_as_Gc());
    case wire::Ask::AddReferrer: return ask(question_.body_as_AddReferrer());
    case wire::Ask::DropReferrer: return ask(question_.body_as_DropReferrer());
    case wire::Ask::AskReferrers: return ask(question_.body_as_AskReferrers());
    case wire::Ask::Match: return ask(question_.body_as_Match());
    case wire::Ask::AskSegments: return ask(question_.body_as_AskSegments());
    case wire::Ask::SettlePut: return ask(question_.body_as_SettlePut());
    case wire::Ask::ReviveSegments: return ask(question_.body_as_ReviveSegments());
    case wire::Ask::AskShared: return ask(question_.body_as_AskShared());
    case wire::Ask::ListShared: return ask(question_.body_as_ListShared());
    case wire::Ask::ChangeShared: return ask(question_.body_as_ChangeShared());
    case wire::Ask::Lend: return ask(question_.body_as_Lend());
    case wire::Ask::RenewLease: return ask(question_.body_as_RenewLease());
    case wire::Ask::EndLease: return ask(question_.body_as_EndLease());
    case wire::Ask::BeginPut: return ask(question_.body_as_BeginPut());
    case wire::Ask::PutParts: return ask(question_.body_as_PutParts());
    case wire::Ask::AskPartDigests: return ask(question_.body_as_AskPartDigests());
    case wire::Ask::CommitPut: return ask(question_.body_as_CommitPut());
    case wire::Ask::AbortPut: return ask(question_.body_as_AbortPut());
    default: return fail(Code::unsupported, "this server is of an older build and does not know this question");
  }
}

Status Asked::work(const wire::Put& put_body) {
  PutPlan plan;
  FRESHET_ASSIGN(plan.manifest, read(put_body.version()));
  FRESHET_ASSIGN(plan.options, read_options(put_body, plan.manifest.owners.size()));
  FRESHET_ASSIGN(Stored stored, upload_or_store(repository(), std::move(plan)));
  outcome_.upload = std::move(stored.upload);
  return outcome_.upload != nullptr ? Status() : say(wire::CreateNamed(builder_, put(builder_, stored.name)));
}

Status Asked::work(const wire::AskWanted& wanted) {
  if (wanted.put() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(const Manifest manifest, read(wanted.put()->version()));
  FRESHET_ASSIGN(const Repository::PutOptions options, read_options(*wanted.put(), manifest.owners.size()));
  FRESHET_ASSIGN(const std::vector<std::uint32_t> tensors, repository().wanted(manifest, options));
  return say(wire::CreateTensors(builder_, builder_.CreateVector(tensors)));
}

Status Asked::work(const wire::AskRecord& record) {
  FRESHET_ASSIGN(const VersionName name, read(record.name()));
  return say_value(repository().get(name));
}

Status Asked::work(const wire::AskLatest& latest) {
  FRESHET_ASSIGN(const VersionNumber number, repository().latest(read(latest.model())));
  return say(wire::CreateNumber(builder_, number));
}

Status Asked::work(const wire::AskFind& find) {
  if (find.id() == nullptr) return fail(Code::corrupt, "a question without its text");
  return say_name(repository().find(read(*find.id())));
}

Status Asked::work(const wire::AskBytes& bytes) {
  FRESHET_ASSIGN(const VersionName name, read(bytes.name()));
  if (bytes.id() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(const auto record, with_.records.get(repository(), name, read(*bytes.id())));
  const std::vector<wire::Range> ranges = copied(bytes.ranges());
  std::uint64_t total = 0;
  for (const wire::Range& range : ranges) {
    if (range.bytes() > kDataBytesMax - total) {
      return fail(Code::invalid_argument, format("more than {} bytes are asked for at once", kDataBytesMax));
    }
    total += range.bytes();
  }
  if (ranges.size() > kRangesMax) return fail(Code::invalid_argument, "too many ranges are asked for at once");
  std::uint8_t* to = nullptr;
  const auto data = builder_.CreateUninitializedVector(total, &to);
  for (const wire::Range& range : ranges) {
    const MutableBytes out(reinterpret_cast<std::byte*>(to), range.bytes());
    FRESHET_TRY(repository().read_range(*record, range.tensor(), range.offset(), out));
    to += range.bytes();
  }
  return say(wire::CreateData(builder_, data));
}

Status Asked::work(const wire::AskCommonAncestor& common) {
  FRESHET_ASSIGN(const VersionName a, read(common.a()));
  FRESHET_ASSIGN(const VersionName b, read(common.b()));
  return say_name(repository().mrca(a, b));
}

Status Asked::work(const wire::AskDiff& diff) {
  FRESHET_ASSIGN(const VersionName a, read(diff.a()));
  FRESHET_ASSIGN(const VersionName b, read(diff.b()));
  return say_value(repository().diff(a, b));
}

Status Asked::work(const wire::Pin& pin) {
  FRESHET_ASSIGN(const VersionName name, read(pin.name()));
  const std::string by = read(pin.by());
  const PinTerms terms = read_pin_terms(pin.lease());
  return say_done(pin.undo() ? repository().unpin(name, by, terms) : repository().pin(name, by, terms));
}

Status Asked::work(const wire::RenewPins& renew) {
  const std::optional<PinLease> lease = read_pin_terms(renew.lease()).lease;
  if (!lease) return fail(Code::invalid_argument, "renew pins: no lease id");
  return say_done(repository().renew_pins(*lease));
}

Status Asked::work(const wire::AskPins& pins) {
  FRESHET_ASSIGN(const VersionName name, read(pins.name()));
  return say_texts(repository().pins(name));
}

Status Asked::work(const wire::Annotate& annotate) {
  FRESHET_ASSIGN(const VersionName name, read(annotate.name()));
  FRESHET_ASSIGN(const Annotations annotations, read(annotate));
  return say_done(repository().annotate(name, annotations));
}

Progress Asked::progress() const {
  // Not of each step: a thousand in a moment are more than a connection holds.
  return [this, next = std::make_shared<std::atomic<Time>>(Time{})](std::uint64_t done, std::uint64_t total) {
    const Time at = system_clock().now();
    Time due = next->load();
    if (at < due || !next->compare_exchange_strong(due, at + kProgressPause)) return;
    Builder builder;
    with_.progress(reply(builder, number(), wire::CreateProgress(builder, done, total)));
  };
}

Status Asked::work(const wire::AskVerify& verify) {
  std::optional<VersionName> name;
  if (verify.name() != nullptr) {
    FRESHET_ASSIGN(name, read(verify.name()));
  }
  return say_value(repository().verify(name, progress()));
}

Status Asked::work(const wire::Match& match) {
  FRESHET_ASSIGN(const MatchQuery query, read(match));
  return say_value(repository().match(query));
}

Status Asked::work(const wire::AskSegments& segments) {
  const std::vector<wire::SegmentRange> ranges = copied(segments.ranges());
  std::uint64_t total = 0;
  for (const wire::SegmentRange& range : ranges) {
    if (range.bytes() > kDataBytesMax - total || ranges.size() > kRangesMax) {
      return fail(Code::invalid_argument, format("more than {} bytes are asked for at once", kDataBytesMax));
    }
    total += range.bytes();
  }
  std::uint8_t* to = nullptr;
  const auto data = builder_.CreateUninitializedVector(total, &to);
  for (const wire::SegmentRange& range : ranges) {
    const MutableBytes out(reinterpret_cast<std::byte*>(to), range.bytes());
    FRESHET_TRY(repository().read_segment_range(read(range.segment()), range.offset(), out));
    to += range.bytes();
  }
  return say(wire::CreateData(builder_, data));
}

Status Asked::work(const wire::SetAlias& alias) {
  std::optional<VersionNumber> expected;
  if (alias.expected().has_value()) expected = alias.expected().value();
  const std::string model = read(alias.model());
  const std::string name = read(alias.alias());
  return say_done(alias.is_decided_elsewhere() ? repository().keep_for_alias(model, name, expected, alias.desired())
                                               : repository().set_alias(model, name, expected, alias.desired()));
}

Status Asked::work(const wire::Retire& retire) {
  FRESHET_ASSIGN(const VersionName name, read(retire.name()));
  // A client that wants to wait longer asks again.
  const auto wait = std::min<std::uint64_t>(retire.wait_ns(), static_cast<std::uint64_t>(kRetireWaitMax.count()));
  return say_value(repository().retire(name, {.wait = Duration(static_cast<std::int64_t>(wait))}));
}

Status Asked::work(const wire::Gc& gc) { return say_value(repository().gc({.dry_run = gc.dry_run()}, progress())); }

Status Asked::work(const wire::AddReferrer& add) {
  if (add.referrer() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(const ExternalReferrer referrer, read(*add.referrer()));
  return say_done(repository().add_referrer(referrer));
}

Status Asked::work(const wire::DropReferrer& drop) {
  if (drop.version() == nullptr) return fail(Code::corrupt, "a question without its text");
  return say_done(repository().drop_referrer(read(*drop.version()), drop.attempt()));
}

Status Asked::work(const wire::ReviveSegments& revive) {
  const std::vector<wire::Segment> segments = copied(revive.segments());
  const std::vector<std::uint64_t> bytes = copied(revive.bytes());
  const std::vector<wire::Digest> digests = copied(revive.digests());
  if (bytes.size() != segments.size() || digests.size() != segments.size()) {
    return fail(Code::corrupt, "segments whose lists do not fit each other");
  }
  std::vector<ProviderRepository::SegmentContent> contents;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    contents.push_back({.segment = read(segments[i]),
                        .bytes = bytes[i],
                        .digest = {.low = digests[i].low(), .high = digests[i].high()}});
  }
  FRESHET_ASSIGN(const std::uint64_t revived, repository().revive_segments(contents));
  return say(wire::CreateNumber(builder_, revived));
}

Status Asked::work(const wire::SettlePut& settle) {
  if (settle.id() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(const bool there, repository().settle_put(read(*settle.id()), settle.attempt()));
  return say(wire::CreateNumber(builder_, there ? 1 : 0));
}

Status Asked::work(const wire::AskShared& shared) {
  FRESHET_ASSIGN(const SharedRecord record, repository().shared_record(read(shared.key())));
  return say(wire::CreateShared(builder_, put(builder_, record)));
}

Status Asked::work(const wire::ListShared& list) {
  FRESHET_ASSIGN(const std::vector<SharedRecord> found,
                 repository().shared_records(read(list.prefix()), read(list.after())));
  return say(wire::CreateSharedRows(builder_, put(builder_, found)));
}

Status Asked::work(const wire::ChangeShared& change) {
  FRESHET_ASSIGN(const std::vector<SharedRecord> expected, read_changed(change.expected()));
  FRESHET_ASSIGN(const std::vector<SharedRecord> changes, read_changed(change.changes()));
  return say_done(repository().change_shared_records(expected, changes));
}

Status Asked::work(const wire::Lend& lend) {
  ReadDesk::Subject subject;
  const std::vector<wire::Range> ranges = copied(lend.ranges());
  const std::vector<wire::SegmentRange> segments = copied(lend.segments());
  if (ranges.empty() == segments.empty() || ranges.size() > kRangesMax || segments.size() > kRangesMax) {
    return fail(Code::invalid_argument, format("a lease has 1 to {} ranges of one kind", kRangesMax));
  }
  if (!ranges.empty()) {
    FRESHET_ASSIGN(const VersionName name, read(lend.name()));
    if (lend.id() == nullptr) return fail(Code::corrupt, "a question without its text");
    FRESHET_ASSIGN(subject.record, with_.records.get(repository(), name, read(*lend.id())));
  }
  for (const wire::Range& range : ranges) {
    subject.parts.push_back(
        {.tensor = range.tensor(), .segment = {}, .offset = range.offset(), .bytes = range.bytes()});
  }
  for (const wire::SegmentRange& range : segments) {
    subject.parts.push_back({.segment = read(range.segment()), .offset = range.offset(), .bytes = range.bytes()});
  }
  FRESHET_ASSIGN(const BulkService::Lent lent, with_.bulk.lend(with_.session, std::move(subject)));
  std::vector<Offset<wire::Channel>> channels;
  for (const protocol::ChannelOffer& offer : lent.channels) {
    channels.push_back(
        wire::CreateChannel(builder_, static_cast<std::uint8_t>(offer.kind), builder_.CreateString(offer.address)));
  }
  const auto list = builder_.CreateVector(channels);
  return say(wire::CreateLent(builder_, lent.lease, lent.version, static_cast<std::uint64_t>(lent.lifetime.count()),
                              lent.piece_bytes, list));
}

Status Asked::work(const wire::EndLease& end) {
  with_.bulk.end(with_.session, end.lease());
  return say(wire::CreateDone(builder_));
}

Status Asked::work(const wire::BeginPut& begin) {
  if (begin.id() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(auto architecture, decode_architecture(data_of(begin.architecture())));
  FRESHET_ASSIGN(const PutToken token, repository().begin_put_for(with_.owner, read(begin.model()), read(*begin.id()),
                                                                  std::move(architecture)));
  const wire::Token wire_form = wire_token(token);
  return say(wire::CreateBegun(builder_, &wire_form));
}

Status Asked::work(const wire::PutParts& parts) {
  FRESHET_ASSIGN(const PutToken token, read(parts.token()));
  FRESHET_ASSIGN(std::shared_ptr<const void> open, repository().keep_open(token));
  std::vector<TensorPart> all;
  for (const wire::Part& part : copied(parts.parts())) all.push_back(read(part));
  FRESHET_ASSIGN(outcome_.upload, upload_of_parts(token, std::move(all), std::move(open)));
  return {};
}

Status Asked::work(const wire::AskPartDigests& digests) {
  FRESHET_ASSIGN(const PutToken token, read(digests.token()));
  return say_value(repository().part_puts().part_digests(token));
}

Status Asked::work(const wire::CommitPut& commit) {
  FRESHET_ASSIGN(const PutToken token, read(commit.token()));
  if (commit.put() == nullptr) return fail(Code::corrupt, "a question without its text");
  FRESHET_ASSIGN(const Manifest manifest, read(commit.put()->version()));
  FRESHET_ASSIGN(const Repository::PutOptions options, read_options(*commit.put(), manifest.owners.size()));
  FRESHET_ASSIGN(const VersionName name, repository().part_puts().commit_put(token, manifest, options));
  return say(wire::CreateNamed(builder_, put(builder_, name)));
}

Status Asked::work(const wire::AbortPut& abort) {
  FRESHET_ASSIGN(const PutToken token, read(abort.token()));
  return say_done(repository().part_puts().abort_put(token));
}

}  // namespace

Result<std::shared_ptr<const VersionRecord>> RecordCache::get(const ProviderRepository& repository,
                                                              const VersionName& name, const VersionId& id) {
  {
    const MutexLock lock(mutex_);
    const auto at =
        std::find_if(recent_.begin(), recent_.end(), [&](const auto& record) { return record->manifest.id == id; });
    if (at != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, at);
      return recent_.front();
    }
  }
  FRESHET_ASSIGN(VersionRecord found, repository.get(name));
  if (found.manifest.id != id) {
    return fail(Code::not_found, format("{} is a different version now than the one being read", to_string(name)));
  }
  auto record = std::make_shared<const VersionRecord>(std::move(found));
  const MutexLock lock(mutex_);
  recent_.push_front(record);
  if (recent_.size() > kKept) recent_.pop_back();
  return record;
}

Outcome answer(const Answering& with, const wire::Request& question) { return Asked(with, question).outcome(); }

}  // namespace freshet::rpc
