// SPDX-License-Identifier: Apache-2.0
#pragma once

/// All that a client and a repository's server say to each other: a struct each. A question has an answer, terms and
/// fields, and stands in the list `Questions` below. A new verb touches four files at most:
///
///   repo/provider_repository.h (or repo/repository.h): the function that a client calls.
///   repo/serve/wire/questions.h: the question, a Call of that function, at the end of the list.
///   repo/serve/client/remote.h: how a client asks it, a line.
///   repo/serve/server/answers.cc: how a repository answers it, a line; nothing for a Call.
///
/// A struct that is new among its fields has a line in repo/serve/wire/values.h. Fields are appended at the end of a
/// question or of an answer. Anything else, and a field within a list, takes another number of the protocol.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "repo/serve/served_owner.h"
#include "repo/serve/wire/messages.h"
#include "repo/serve/wire/signed_answers.h"
#include "repo/serve/wire/values.h"
#include "transport/security/allow_list.h"

namespace freshet::rpc {

/// Which threads work on a question. Quick questions never wait for another question. Questions that change the
/// repository take turns. Slow questions may take minutes. A verify reads all that is stored, and every reader may ask
/// for it, so it has threads of its own: no operator's question waits for one.
enum class WorkQueue : std::uint8_t { quick, write, slow, verify };

/// The facts of a question that a server knows before it works on it, and a client before it asks. Readers ask and
/// fetch. Writers also put, say more of versions, and pin. Operators change what others rely on: retire, gc, aliases,
/// the placement, repairs. A put over several providers takes numbers and leaves references, so writers may do that.
struct Terms {
  Right right = Right::read;
  WorkQueue queue = WorkQueue::quick;
  bool is_long = false;            ///< It has a manifest, a graph or a list. Others have at most kTextBytesMax.
  bool changes = false;            ///< Asked twice it would do something else: no client asks it again.
  std::string_view verb = "this";  ///< For whoever lacks the right.
  std::size_t bytes_max() const { return is_long ? kMessageBytesMax : kTextBytesMax; }
};
template <typename Question>
constexpr Terms terms_of() {
  if constexpr (requires { Question::kTerms; }) {
    return Question::kTerms;
  } else {
    return {};
  }
}

// Steps: what is said beside questions and answers.

struct Ping {
  static void fields(auto&, auto&) {}
};
struct Bye {
  static void fields(auto&, auto&) {}
};
/// Bytes of an upload: the message's second part.
struct Chunk {
  std::uint64_t upload = 0;
  std::uint64_t offset = 0;
  static void fields(auto& chunk, auto& v) { v(chunk.upload, chunk.offset); }
};
struct Abandon {
  std::uint64_t upload = 0;
  static void fields(auto& abandon, auto& v) { v(abandon.upload); }
};
struct Welcome {
  std::uint32_t protocol = 0;
  std::uint64_t session = 0;
  std::string host;
  Standing standing = Standing::stays;
  ServedOwner owner;  ///< Of a standby: whom it knows as the owner.
  static void fields(auto& welcome, auto& v) {
    v(welcome.protocol, welcome.session, welcome.host);
    v.choice(welcome.standing, Standing::standby);
    v(welcome.owner.address, welcome.owner.public_key);
  }
};
/// The requests of this client that are still being worked on.
struct Pong {
  std::vector<std::uint64_t> running;
  static void fields(auto& pong, auto& v) { v(pong.running); }
};
/// How far a request is that takes long.
struct Advance {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  static void fields(auto& advance, auto& v) { v(advance.done, advance.total); }
};
/// The upload may begin: these tensors, one after another, as one run of bytes. At most `window` of them before the
/// first credit.
struct Invitation {
  std::uint64_t upload = 0;
  std::vector<std::uint32_t> tensors;
  std::uint64_t window = 0;
  static void fields(auto& invitation, auto& v) { v(invitation.upload, invitation.tensors, invitation.window); }
};
struct Credit {
  std::uint64_t upload = 0;
  std::uint64_t bytes = 0;
  static void fields(auto& credit, auto& v) { v(credit.upload, credit.bytes); }
};

// What several questions have.

/// How a message keeps an argument.
template <typename Argument>
struct Kept {
  using Type = std::remove_cvref_t<Argument>;
};
template <typename Element>
struct Kept<std::span<const Element>> {
  using Type = std::vector<Element>;
};
/// A question that is a call of a repository's function: its fields are the arguments, and its answer is the result.
template <typename Function>
struct CallOf;
template <typename Class, typename Returned, typename... Arguments>
struct CallOf<Result<Returned> (Class::*)(Arguments...)> {
  using Callee = Class;
  using Answer = Returned;
  std::tuple<typename Kept<Arguments>::Type...> arguments;
  static void fields(auto& call, auto& v) {
    std::apply([&](auto&... each) { v(each...); }, call.arguments);
  }
};
template <typename Class, typename Returned, typename... Arguments>
struct CallOf<Result<Returned> (Class::*)(Arguments...) const> : CallOf<Result<Returned> (Class::*)(Arguments...)> {};
template <auto function>
struct Call : CallOf<decltype(function)> {
  static constexpr auto kFunction = function;
};
/// The call with these arguments.
template <typename Question, typename... Arguments>
Question call_of(Arguments&&... arguments) {
  Question question;
  question.arguments = {std::forward<Arguments>(arguments)...};
  return question;
}

/// Bytes of a tensor of the version that a question names.
struct ByteRange {
  std::uint32_t tensor = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  static void fields(auto& range, auto& v) { v(range.tensor, range.offset, range.bytes); }
};
struct SegmentRange {
  SegmentName segment;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  static void fields(auto& range, auto& v) { v(range.segment, range.offset, range.bytes); }
};
/// A version, and how it is put.
struct Putting {
  Manifest manifest;
  Repository::PutOptions options;
  static void fields(auto& putting, auto& v) {
    v(putting.manifest, putting.options);
    v.check([&] { return check_placed(putting.options.placed, putting.manifest); });
  }
};
/// The bytes of the ranges, one after another.
struct Data {
  Bytes bytes;
  static void fields(auto& data, auto& v) { v.data(data.bytes); }
};

// Puts.

struct Put : Putting {
  using Answer = VersionName;
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true, "put"};
  std::vector<BroughtTensor> brought;  ///< Its client says that they are in the store.
  /// Small tensors that come with the question, and the bytes of each. A server that wants others invites all.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> given;
  Bytes given_bytes;  ///< One after another.
  static void fields(auto& put, auto& v) {
    Putting::fields(put, v);
    v.list(put.brought, kTensorsMax);
    v.list(put.given, kTensorsMax);
    v.data(put.given_bytes);
  }
};
/// For a client that is to bring tensors into the store itself.
struct SignUploads {
  using Answer = SignedForPut;
  static constexpr Terms kTerms{Right::write, WorkQueue::quick, false, false, "put"};
  std::vector<PartToBring> parts;
  static void fields(auto& sign, auto& v) { v.list(sign.parts, kSignedTensorsMax); }
};
struct AskWanted : Putting {
  using Answer = std::vector<std::uint32_t>;
  static constexpr Terms kTerms{Right::write, WorkQueue::quick, true, false, "put"};
};
/// A put that looks for equal tensors takes the writers' turn.
struct AskWantedDedup : Putting {
  using Answer = std::vector<std::uint32_t>;
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, false, "put"};
};
struct BeginPut {
  using Answer = PutToken;
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true, "put"};
  std::string model;
  VersionId id;
  std::shared_ptr<const Architecture> architecture;
  static void fields(auto& begin, auto& v) { v(begin.model, begin.id, begin.architecture); }
};
/// Their bytes follow as an upload, whose tensors are indices of parts.
struct PutParts {
  using Answer = void;
  static constexpr Terms kTerms{Right::write, WorkQueue::quick, true, true, "put"};
  PutToken token;
  std::vector<TensorPart> parts;
  static void fields(auto& put, auto& v) {
    v(put.token);
    v.list(put.parts, kRangesMax);
  }
};
/// A digest for each tensor; nothing for one without a part.
struct AskPartDigests : Call<&PartPuts::part_digests> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, false, false, "put"};
};
struct CommitPut {
  using Answer = VersionName;
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true, "put"};
  PutToken token;
  Putting put;
  static void fields(auto& commit, auto& v) { v(commit.token, commit.put); }
};
struct AbortPut : Call<&PartPuts::abort_put> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, false, true, "put"};
};

// Reads.

struct AskBytes {
  using Answer = Data;
  static constexpr Terms kTerms{.is_long = true};
  VersionName name;
  VersionId id;
  std::vector<ByteRange> ranges;
  static void fields(auto& ask, auto& v) {
    v(ask.name, ask.id);
    v.list(ask.ranges, kRangesMax);
  }
};
struct AskSegments {
  using Answer = Data;
  static constexpr Terms kTerms{.is_long = true};
  std::vector<SegmentRange> ranges;
  static void fields(auto& ask, auto& v) { v.list(ask.ranges, kRangesMax); }
};
/// `version` is what a fetch is to name, `piece_bytes` how long its pieces may be.
struct Lent {
  std::uint64_t lease = 0;
  std::uint64_t version = 0;
  Duration lifetime{};
  std::uint64_t piece_bytes = 0;
  std::vector<std::pair<std::uint8_t, std::string>> channels;  ///< A ChannelKind and an address each.
  static void fields(auto& lent, auto& v) {
    v(lent.lease, lent.version, lent.lifetime, lent.piece_bytes, lent.channels);
  }
};
/// Bytes that are about to be fetched over a data channel: of a version's tensors, or of segments.
struct Lend {
  using Answer = Lent;
  static constexpr Terms kTerms{.is_long = true};
  VersionName name;
  VersionId id;
  std::vector<ByteRange> ranges;
  std::vector<SegmentRange> segments;
  static void fields(auto& lend, auto& v) {
    v(lend.name, lend.id);
    v.list(lend.ranges, kRangesMax);
    v.list(lend.segments, kRangesMax);
  }
};
struct RenewLease {
  using Answer = void;
  std::uint64_t lease = 0;
  static void fields(auto& renew, auto& v) { v(renew.lease); }
};
struct EndLease : RenewLease {};

/// For a client that reads from the store itself. `unsupported`: the repository is in no store.
struct SignReads {
  using Answer = SignedReads;
  VersionName name;
  VersionId id;
  std::vector<std::uint32_t> tensors;
  static void fields(auto& sign, auto& v) {
    v(sign.name, sign.id);
    v.list(sign.tensors, kSignedTensorsMax);
  }
};

// What is known of versions.

struct AskRecord : Call<&Repository::get> {};
struct AskLatest : Call<&Repository::latest> {};
struct AskFind : Call<&Repository::find> {};
struct AskOwners : Call<&Repository::owners> {};
struct AskLineage : Call<&Repository::lineage> {};
struct AskCommonAncestor : Call<&Repository::mrca> {};
struct AskDescendants : Call<&Repository::descendants> {};
struct AskContributors : Call<&Repository::contributors> {};
struct AskDiff : Call<&Repository::diff> {};
struct AskModels : Call<&Repository::model_rows> {};
struct AskVersions : Call<&Repository::versions> {};
struct AskStat : Call<&Repository::stat> {};
struct AskVerify {
  using Answer = VerifyReport;
  static constexpr Terms kTerms{.queue = WorkQueue::verify};
  std::optional<VersionName> name;
  static void fields(auto& verify, auto& v) { v(verify.name); }
};
struct Match : Call<&Repository::match> {
  static constexpr Terms kTerms{.is_long = true};
};
/// A match with a pin takes the writers' turn.
struct MatchAndPin {
  using Answer = MatchAnswer;
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true, "match with a pin"};
  MatchQuery query;
  static void fields(auto& match, auto& v) {
    v(match.query, match.query.pin_by, match.query.pin_terms);
    v.check([&] { return check(match.query); });
  }
};

// What is said of versions after their put, and their end.

struct Annotate : Call<&Repository::annotate> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true, "set"};
};
struct Pin : Call<&Repository::pin> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, false, true, "pin"};
};
struct Unpin : Call<&Repository::unpin> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, false, true, "pin"};
};
struct RenewPins : Call<&ProviderRepository::renew_pins> {
  static constexpr Terms kTerms{Right::write, WorkQueue::quick, false, false, "pin"};
};
struct AskPins : Call<&Repository::pins> {};
struct AskAllPins : Call<&Repository::all_pins> {};
struct SetAlias : Call<&Repository::set_alias> {
  static constexpr Terms kTerms{Right::operate, WorkQueue::write, false, true, "alias"};
};
struct KeepForAlias : Call<&ProviderRepository::keep_for_alias> {
  static constexpr Terms kTerms{Right::operate, WorkQueue::write, false, true, "alias"};
};
struct AskAliases : Call<&Repository::aliases> {};
struct Retire {
  using Answer = RetireReport;
  static constexpr Terms kTerms{Right::operate, WorkQueue::slow, false, true, "retire"};
  VersionName name;
  Duration wait{};
  static void fields(auto& retire, auto& v) { v(retire.name, retire.wait); }
};
struct Gc {
  using Answer = GcReport;
  static constexpr Terms kTerms{Right::operate, WorkQueue::slow, false, false, "gc"};
  bool dry_run = false;
  static void fields(auto& gc, auto& v) { v(gc.dry_run); }
};

// Between the providers of one repository.

/// Once more changes nothing.
struct AddReferrer : Call<&ProviderRepository::add_referrer> {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, false, "put"};
};
struct DropReferrer : Call<&ProviderRepository::drop_referrer> {
  static constexpr Terms kTerms{Right::operate, WorkQueue::write, false, false, "gc"};
};
struct AskReferrers : Call<&ProviderRepository::referrers> {};
struct SettlePut : Call<&ProviderRepository::settle_put> {
  static constexpr Terms kTerms{Right::operate, WorkQueue::write, false, false, "gc"};
};
struct ReviveSegments : Call<&ProviderRepository::revive_segments> {
  static constexpr Terms kTerms{Right::operate, WorkQueue::slow, true, true, "repair"};
};
struct AskShared : Call<&ProviderRepository::shared_record> {};
/// Those whose keys begin so, and come after that one: the first ones.
struct ListShared : Call<&ProviderRepository::shared_records> {};
struct ChangeShared {
  using Answer = void;
  static constexpr Terms kTerms{Right::operate, WorkQueue::write, true, true,
                                "change what providers share (placement, aliases)"};
  std::vector<SharedRecord> expected;
  std::vector<SharedRecord> changes;
  static void fields(auto& change, auto& v) {
    v.list(change.expected, kSharedRecordsMax);
    v.list(change.changes, kSharedRecordsMax);
  }
};
/// A ChangeShared that only counts (registrar_records.h): what a put over several providers changes.
struct Count : ChangeShared {
  static constexpr Terms kTerms{Right::write, WorkQueue::write, true, true,
                                "change what providers share (placement, aliases)"};
};

/// A verb's number is its place in its list: new ones come last.
using Steps = std::tuple<Ping, Bye, Chunk, Abandon, Welcome, Pong, Advance, Invitation, Credit>;
using Questions =
    std::tuple<Put, AskWanted, AskWantedDedup, BeginPut, PutParts, AskPartDigests, CommitPut, AbortPut, AskBytes,
               AskSegments, Lend, RenewLease, EndLease, AskRecord, AskLatest, AskFind, AskOwners, AskLineage,
               AskCommonAncestor, AskDescendants, AskContributors, AskDiff, AskModels, AskVersions, AskStat, AskVerify,
               Match, MatchAndPin, Annotate, Pin, Unpin, RenewPins, AskPins, AskAllPins, SetAlias, KeepForAlias,
               AskAliases, Retire, Gc, AddReferrer, DropReferrer, AskReferrers, SettlePut, ReviveSegments, AskShared,
               ListShared, ChangeShared, Count, SignReads, SignUploads>;
inline constexpr std::uint16_t kFirstStep = 1;
inline constexpr std::uint16_t kFirstQuestion = 32;

template <typename T, typename... Others>
consteval std::uint16_t place_in(std::type_identity<std::tuple<Others...>>) {
  constexpr std::array kIsIt{std::is_same_v<T, Others>...};
  return static_cast<std::uint16_t>(std::ranges::find(kIsIt, true) - kIsIt.begin());
}
/// An answer has the number of its question.
template <typename T>
inline constexpr std::uint16_t kVerb = [] {
  constexpr std::uint16_t step = place_in<T>(std::type_identity<Steps>());
  if (step < std::tuple_size_v<Steps>) return static_cast<std::uint16_t>(kFirstStep + step);
  constexpr std::uint16_t question = place_in<T>(std::type_identity<Questions>());
  return static_cast<std::uint16_t>(kFirstQuestion + question);
}();

/// Of a question that this build does not know: an operator is told that it is unsupported, whatever its length.
inline Terms terms_of(std::uint16_t verb) {
  static constexpr auto kAll = []<typename... Question>(std::type_identity<std::tuple<Question...>>) {
    return std::array{terms_of<Question>()...};
  }(std::type_identity<Questions>());
  const std::size_t place = std::size_t{verb} - kFirstQuestion;
  return place < kAll.size() ? kAll[place] : Terms{.right = Right::operate, .is_long = true};
}

/// A question, or a step of a client's.
template <typename T>
Encoded request(std::uint64_t number, const T& said) {
  Writer writer;
  writer(said);
  return std::move(writer).request(number, kVerb<T>);
}
/// A step of the server's.
template <typename T>
Encoded reply(std::uint64_t number, const T& said) {
  Writer writer;
  writer(said);
  return std::move(writer).reply(number, kVerb<T>);
}
/// The type of a question's answer.
template <typename Question, typename... Value>
Encoded answer_to(std::uint64_t number, const Value&... value) {
  static_assert(sizeof...(Value) == (std::is_void_v<typename Question::Answer> ? 0 : 1));
  Writer writer;
  writer(value...);
  return std::move(writer).reply(number, kVerb<Question>);
}

/// Nothing when it is something else, or cannot be read.
template <typename Step, typename Root>
std::optional<Step> step_in(const Received<Root>& message) {
  if (message.verb() != kVerb<Step>) return std::nullopt;
  Result<Step> step = read<Step>(*message.said());
  return step ? std::optional<Step>(std::move(*step)) : std::nullopt;
}
/// The answer to a question; corrupt for anything else. Views in it point into the message.
template <typename Question>
Result<typename Question::Answer> answer_in(const Received<wire::Reply>& message) {
  if (message.verb() != kVerb<Question>) {
    return fail(Code::corrupt, "the repository's server answered another question");
  }
  if constexpr (std::is_void_v<typename Question::Answer>) {
    return {};
  } else {
    return read<typename Question::Answer>(*message.said());
  }
}

}  // namespace freshet::rpc
