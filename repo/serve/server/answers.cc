// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/answers.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "repo/registrar/registrar_records.h"
#include "repo/serve/server/put_uploads.h"

namespace freshet::rpc {
namespace {

constexpr Duration kRetireWaitMax = std::chrono::seconds(5);
/// The bucket's log keeps an object for longer than twice this after it was condemned (LogOptions::grace_s).
constexpr Duration kSignedLife = std::chrono::minutes(10);
constexpr Duration kProgressPause = std::chrono::milliseconds(50);

/// Answers one question. work() is the answer's value; or the outcome, where that is not only a value.
class Asked {
 public:
  Asked(const Answering& with, std::uint64_t number) : with_(with), number_(number) {}

  /// Most are only called.
  template <typename Question>
  requires requires { Question::kFunction; }
  auto work(const Question& question) {
    const auto call = [&](const auto&... arguments) {
      if constexpr (std::is_same_v<typename Question::Callee, PartPuts>) {
        return (repository().part_puts().*Question::kFunction)(arguments...);
      } else {
        return (repository().*Question::kFunction)(arguments...);
      }
    };
    return std::apply(call, question.arguments);
  }

  Result<Outcome> work(Put put);
  /// Stores the version with the tensors that came with the question, and those that its client brought into the store.
  /// Nothing: others are wanted, too.
  Result<std::optional<VersionName>> store_given(const Put& put);
  auto work(const AskWanted& ask) { return wanted(ask, false); }
  auto work(const AskWantedDedup& ask) { return wanted(ask, true); }
  auto work(const BeginPut& begin) {
    return repository().begin_put_for(with_.owner, begin.model, begin.id, begin.architecture);
  }
  Result<Outcome> work(PutParts put);
  auto work(const CommitPut& commit) {
    return repository().part_puts().commit_put(commit.token, commit.put.manifest, commit.put.options);
  }

  Result<Outcome> work(const AskBytes& ask);
  Result<Outcome> work(const AskSegments& ask);
  Result<Lent> work(const Lend& lend);
  Result<SignedReads> work(const SignReads& sign);
  Result<SignedForPut> work(const SignUploads& sign) {
    FRESHET_ASSIGN(SignedUploads all, repository().sign_uploads(sign.parts, kSignedLife));
    return SignedForPut{.all = std::move(all), .life = kSignedLife};
  }
  auto work(const RenewLease& renew) { return with_.bulk.renew(with_.session, renew.lease); }
  Status work(const EndLease& end) {
    with_.bulk.end(with_.session, end.lease);
    return {};
  }

  auto work(const AskVerify& ask) { return repository().verify(ask.name, progress()); }
  auto work(const MatchAndPin& match) { return repository().match(match.query); }
  Status work(const RenewPins& renew) {
    const PinLease& lease = std::get<0>(renew.arguments);
    if (lease == PinLease{}) return fail(Code::invalid_argument, "renew pins: no lease id");
    return repository().renew_pins(lease);
  }
  // A client that wants to wait longer asks again.
  auto work(const Retire& retire) {
    return repository().retire(retire.name, {.wait = std::min(retire.wait, kRetireWaitMax)});
  }
  auto work(const Gc& gc) { return repository().gc({.dry_run = gc.dry_run}, progress()); }

  auto work(const ChangeShared& change) { return repository().change_shared_records(change.expected, change.changes); }
  Status work(const Count& count) {
    if (!only_counts(count.expected, count.changes)) return fail(lacking(terms_of<ChangeShared>()));
    return repository().change_shared_records(count.expected, count.changes);
  }

 private:
  ProviderRepository& repository() const { return with_.repository; }
  Progress progress() const;
  Result<std::vector<std::uint32_t>> wanted(const Putting& put, bool dedup) const {
    Repository::PutOptions options = put.options;
    options.dedup = dedup;
    return repository().wanted(put.manifest, options);
  }
  /// `read` gets where the bytes of each range go.
  template <typename Question, typename Range, typename Read>
  Result<Outcome> data(const std::vector<Range>& ranges, Read read) const;

  const Answering& with_;
  const std::uint64_t number_;
};

Result<std::optional<VersionName>> Asked::store_given(const Put& put) {
  std::unordered_map<std::uint32_t, Bytes> given;
  Bytes rest = put.given_bytes;
  if (rest.size() > kGivenBytesMax) return std::nullopt;
  for (const auto& [tensor, bytes] : put.given) {
    if (bytes > rest.size()) return std::nullopt;
    given[tensor] = rest.first(bytes);
    rest = rest.subspan(bytes);
  }
  bool lacked = false;
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    const auto at = given.find(tensor);
    lacked = at == given.end();
    if (lacked) return fail(Code::unavailable, "its bytes did not come with the question");
    return at->second;
  };
  Result<VersionName> name = repository().put_brought(put.manifest, bytes_of, put.options, put.brought);
  if (lacked) return std::nullopt;
  if (!name) return fail(std::move(name).error());
  return std::move(*name);
}

Result<Outcome> Asked::work(Put put) {
  if (!put.given.empty() || !put.brought.empty()) {
    FRESHET_ASSIGN(const std::optional<VersionName> name, store_given(put));
    if (name) return Outcome{.reply = answer_to<Put>(number_, *name), .upload = nullptr};
  }
  PutPlan plan;
  plan.manifest = std::move(put.manifest);
  plan.options = std::move(put.options);
  plan.brought = std::move(put.brought);
  FRESHET_ASSIGN(Stored stored, upload_or_store(repository(), std::move(plan)));
  if (stored.upload != nullptr) return Outcome{.reply = {}, .upload = std::move(stored.upload)};
  return Outcome{.reply = answer_to<Put>(number_, stored.name), .upload = nullptr};
}

Result<Outcome> Asked::work(PutParts put) {
  FRESHET_ASSIGN(std::shared_ptr<const void> open, repository().keep_open(put.token));
  FRESHET_ASSIGN(auto upload, upload_of_parts(put.token, std::move(put.parts), std::move(open)));
  return Outcome{.reply = {}, .upload = std::move(upload)};
}

/// The bytes are read where the message has them.
template <typename Question, typename Range, typename Read>
Result<Outcome> Asked::data(const std::vector<Range>& ranges, Read read) const {
  std::uint64_t total = 0;
  for (const Range& range : ranges) {
    if (range.bytes > kDataBytesMax - total) {
      return fail(Code::invalid_argument, format("more than {} bytes are asked for at once", kDataBytesMax));
    }
    total += range.bytes;
  }
  Writer writer;
  std::uint8_t* to = nullptr;
  writer.attach(writer.builder().CreateUninitializedVector(total, &to));
  std::vector<MutableBytes> outs;
  for (const Range& range : ranges) {
    outs.emplace_back(reinterpret_cast<std::byte*>(to), range.bytes);
    to += range.bytes;
  }
  FRESHET_TRY(read(outs));
  return Outcome{.reply = std::move(writer).reply(number_, kVerb<Question>), .upload = nullptr};
}

Result<Outcome> Asked::work(const AskBytes& ask) {
  FRESHET_ASSIGN(const auto record, with_.records.get(repository(), ask.name, ask.id));
  return data<AskBytes>(ask.ranges, [&](const std::vector<MutableBytes>& outs) -> Status {
    const auto tensors = record->manifest.architecture->tensors();
    std::vector<Repository::TensorRead> whole;
    for (std::size_t i = 0; i < outs.size(); ++i) {
      const auto& [tensor, offset, bytes] = ask.ranges[i];
      if (tensor >= tensors.size() || offset != 0 || bytes != tensors[tensor].bytes()) break;
      whole.push_back({.tensor = tensor, .out = outs[i]});
    }
    // Small tensors of a version may lie side by side.
    if (outs.size() > 1 && whole.size() == outs.size()) return repository().read(*record, whole);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      FRESHET_TRY(repository().read_range(*record, ask.ranges[i].tensor, ask.ranges[i].offset, outs[i]));
    }
    return {};
  });
}

Result<Outcome> Asked::work(const AskSegments& ask) {
  return data<AskSegments>(ask.ranges, [&](const std::vector<MutableBytes>& outs) -> Status {
    for (std::size_t i = 0; i < outs.size(); ++i) {
      FRESHET_TRY(repository().read_segment_range(ask.ranges[i].segment, ask.ranges[i].offset, outs[i]));
    }
    return {};
  });
}

Result<Lent> Asked::work(const Lend& lend) {
  if (lend.ranges.empty() == lend.segments.empty()) {
    return fail(Code::invalid_argument, format("a lease has 1 to {} ranges of one kind", kRangesMax));
  }
  ReadDesk::Subject subject;
  if (!lend.ranges.empty()) {
    FRESHET_ASSIGN(subject.record, with_.records.get(repository(), lend.name, lend.id));
  }
  for (const ByteRange& range : lend.ranges) {
    subject.parts.push_back({.tensor = range.tensor, .segment = {}, .offset = range.offset, .bytes = range.bytes});
  }
  for (const SegmentRange& range : lend.segments) {
    subject.parts.push_back({.segment = range.segment, .offset = range.offset, .bytes = range.bytes});
  }
  FRESHET_ASSIGN(const BulkService::Lent lent, with_.bulk.lend(with_.session, std::move(subject)));
  Lent answer{.lease = lent.lease,
              .version = lent.version,
              .lifetime = lent.lifetime,
              .piece_bytes = lent.piece_bytes,
              .channels = {}};
  for (const protocol::ChannelOffer& offer : lent.channels) {
    answer.channels.emplace_back(static_cast<std::uint8_t>(offer.kind), offer.address);
  }
  return answer;
}

Result<SignedReads> Asked::work(const SignReads& sign) {
  FRESHET_ASSIGN(const auto record, with_.records.get(repository(), sign.name, sign.id));
  FRESHET_ASSIGN(auto all, repository().sign_reads(*record, sign.tensors, kSignedLife));
  SignedReads answer{.tensors = {}, .life = kSignedLife};
  for (std::vector<SignedPart>& parts : all) answer.tensors.push_back({std::move(parts)});
  return answer;
}

Progress Asked::progress() const {
  // Not of each step: a thousand in a moment are more than a connection holds.
  return [this, next = std::make_shared<std::atomic<Time>>(Time{})](std::uint64_t done, std::uint64_t total) {
    const Time at = system_clock().now();
    Time due = next->load();
    if (at < due || !next->compare_exchange_strong(due, at + kProgressPause)) return;
    with_.progress(reply(number_, Advance{.done = done, .total = total}));
  };
}

template <typename Question>
Result<Outcome> outcome_of(const Answering& with, std::uint64_t number, const wire::Said& said) {
  FRESHET_ASSIGN(Question question, read<Question>(said));
  auto worked = Asked(with, number).work(std::move(question));
  if constexpr (std::is_same_v<decltype(worked), Result<Outcome>>) {
    return worked;
  } else {
    if (!worked) return fail(std::move(worked).error());
    if constexpr (std::is_void_v<typename Question::Answer>) {
      return Outcome{.reply = answer_to<Question>(number), .upload = nullptr};
    } else {
      return Outcome{.reply = answer_to<Question>(number, *worked), .upload = nullptr};
    }
  }
}

/// By the verb's place in its list.
template <typename... Question>
constexpr auto outcomes_of(std::type_identity<std::tuple<Question...>>) {
  return std::array{&outcome_of<Question>...};
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

Error standby_error(const ServedOwner& owner) {
  return Error(Code::unavailable,
               owner.address.empty()
                   ? "this provider stands by, and nobody owns the repository now; ask again in some seconds"
                   : format("this provider stands by; the repository's owner is at {}", owner.address));
}

Error lacking(const Terms& terms) {
  return Error(
      Code::failed_precondition,
      format("{0}: this needs {1} rights; put the word {1} before this client's key in the server's allow-list",
             terms.verb, word_of(terms.right)));
}

Outcome answer(const Answering& with, const Received<wire::Request>& question) {
  static constexpr auto kOutcomes = outcomes_of(std::type_identity<Questions>());
  const std::size_t place = std::size_t{question.verb()} - kFirstQuestion;
  Result<Outcome> outcome =
      place < kOutcomes.size()
          ? kOutcomes[place](with, question->request(), *question.said())
          : fail(Code::unsupported, "this server is of an older build and does not know this question");
  return outcome ? std::move(*outcome)
                 : Outcome{.reply = failure(question->request(), outcome.error()), .upload = nullptr};
}

}  // namespace freshet::rpc
