// SPDX-License-Identifier: Apache-2.0
// What a served repository and its clients say to each other. A message is taken as a question, which a repository
// answers, and as an answer, which is read as a client reads it.
#include <memory>

#include "core/base/check.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/serve/server/answers.h"
#include "repo/serve/server/bulk_service.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/repo/world.h"

namespace freshet::fuzz {
namespace {

using namespace rpc;

/// Takes writes until it is frozen, so that each input finds the same repository.
class FrozenBackend final : public BackendWrapper {
 public:
  FrozenBackend() : BackendWrapper(make_memory_backend()) {}
  void freeze() { frozen_ = true; }

  bool read_only() const override { return frozen_; }
  Status apply(const Batch& batch) override {
    FRESHET_CHECK(!frozen_);
    return inner().apply(batch);
  }

 private:
  bool frozen_ = false;
};

struct World {
  std::vector<TestVersion> versions;
  std::unique_ptr<ProviderRepository> repository;
  std::unique_ptr<BulkService> bulk;
  RecordCache records;

  World() {
    auto backend = std::make_unique<FrozenBackend>();
    FrozenBackend& frozen = *backend;
    repository = open_or_die(std::move(backend));
    std::mt19937_64 random(3);
    const auto architecture = test_architecture({40, 8});
    for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
      versions.push_back(make_version("net", test_id(sequence), architecture,
                                      versions.empty() ? nullptr : &versions.back(), {0}, random));
      versions.back().manifest.tags = {{"k", "v"}};
      versions.back().manifest.name = put(*repository, versions.back(), {.quality = 0.5}).value();
    }
    FRESHET_CHECK(repository->set_alias("net", "best", 0, 2).has_value());
    FRESHET_CHECK(repository->pin(versions[0].manifest.name, "me").has_value());
    frozen.freeze();
    bulk = BulkService::open(*repository, {.channels = ChannelChoice(std::vector<ChannelKind>{})}).value();
    bulk->begin_session(1);
  }
};

World& world() {
  static World one;
  return one;
}

Input input_of(const Encoded& message) {
  const auto bytes = bytes_of(message.data(), message.size());
  return Input(bytes.begin(), bytes.end());
}

template <typename Asked>
Input asked(const Asked& question) {
  return input_of(request(7, question));
}

template <typename Asked>
Input answered(const typename Asked::Answer& value) {
  return input_of(answer_to<Asked>(7, value));
}

void add_questions(std::vector<Input>& seeds) {
  const VersionName first = world().versions[0].manifest.name;
  const TestVersion& last = world().versions[2];
  const VersionName name = last.manifest.name;
  const VersionId id = last.manifest.id;
  TestVersion next = last;
  next.manifest.id = test_id(9);
  next.manifest.owners = last.manifest.owners.with_written(next.manifest.id, std::vector<std::uint32_t>{1});
  const Manifest manifest = encodable(next.manifest).value();
  const Repository::PutOptions options{.quality = 0.5,
                                       .placed = Placed{.placement = 1, .attempt = 3, .elsewhere = {0}}};
  seeds.push_back(asked(Put{{manifest, {}}}));
  seeds.push_back(asked(AskWanted{{manifest, options}}));
  seeds.push_back(asked(call_of<AskRecord>(name)));
  seeds.push_back(asked(call_of<AskFind>(id)));
  seeds.push_back(asked(AskBytes{name, id, {{0, 4, 20}, {1, 0, 8}}}));
  seeds.push_back(asked(AskSegments{{{last.manifest.owners[0], 4, 20}}}));
  seeds.push_back(asked(Lend{name, id, {{0, 4, 20}}, {}}));
  seeds.push_back(asked(call_of<AskContributors>(name)));
  seeds.push_back(asked(call_of<AskDiff>(first, name)));
  seeds.push_back(asked(AskVerify{name}));
  MatchQuery query{.graph = MatchGraph::of(*last.manifest.architecture),
                   .top = 3,
                   .least_quality = 0.25,
                   .tags = {{"k", "v"}},
                   .exclude_lineage = first};
  seeds.push_back(asked(call_of<Match>(query)));
  query.pin_by = "me";
  seeds.push_back(asked(MatchAndPin{query}));
  seeds.push_back(
      asked(call_of<Annotate>(name, Annotations{.sets_quality = true, .tags = {{"k", std::nullopt}, {"l", "v"}}})));
  seeds.push_back(asked(call_of<SettlePut>(id, 5)));
  seeds.push_back(asked(call_of<RenewPins>(PinLease{.high = 1, .low = 2})));
  seeds.push_back(asked(call_of<Pin>(name, "me", PinTerms{.stays = false, .lease = PinLease{.high = 1, .low = 2}})));
  seeds.push_back(asked(call_of<ReviveSegments>(
      std::vector<ProviderRepository::SegmentContent>{{last.manifest.owners[0], 7, last.manifest.digests[0]}})));
  seeds.push_back(asked(call_of<ListShared>("number/", "number/net")));
  const std::vector<SharedRecord> records{{.key = "placement", .value = "x"}};
  seeds.push_back(asked(ChangeShared{records, records}));
  seeds.push_back(asked(Count{{{{.key = "number/net", .value = "3"}}, {{.key = "number/net", .value = "4"}}}}));
  const PutToken token = world().repository->part_puts().begin_put("net", test_id(10), manifest.architecture).value();
  seeds.push_back(asked(BeginPut{"net", id, manifest.architecture}));
  TensorPart part{.tensor = 0, .offset = 4, .count = 3, .stride = 10, .length = 8, .bytes = {}};
  part.digest = last.manifest.digests[0];
  seeds.push_back(asked(PutParts{token, {part, part}}));
  seeds.push_back(asked(call_of<AskPartDigests>(token)));
  seeds.push_back(asked(call_of<AbortPut>(token)));
  seeds.push_back(asked(CommitPut{token, {manifest, options}}));
  seeds.push_back(asked(call_of<AddReferrer>(
      ExternalReferrer{.version = test_id(8), .attempt = 2, .home = "p1", .segments = {last.manifest.owners[0]}})));
}

void add_answers(std::vector<Input>& seeds) {
  const ProviderRepository& repository = *world().repository;
  const VersionName name = world().versions[2].manifest.name;
  seeds.push_back(answered<AskRecord>(repository.get(name).value()));
  seeds.push_back(answered<AskOwners>(repository.owners(name).value()));
  seeds.push_back(answered<AskLineage>(repository.lineage(name).value()));
  seeds.push_back(answered<AskContributors>(repository.contributors(name).value()));
  seeds.push_back(answered<AskDiff>(repository.diff(world().versions[0].manifest.name, name).value()));
  seeds.push_back(
      answered<Match>(MatchAnswer{.top = {{.version = name, .id = test_id(3), .quality = 1.0}}, .as_of = 4}));
  seeds.push_back(answered<AskAliases>(std::vector<Alias>{{"best", 2}}));
  seeds.push_back(answered<Gc>(GcReport{
      .freed_bytes = 3, .rows = {{.writer = test_id(1), .version = name, .named_by = {name}}}, .notes = {"one"}}));
  seeds.push_back(
      answered<AskReferrers>(std::vector<ExternalReferrer>{{.version = test_id(8), .home = "p", .segments = {{}}}}));
  seeds.push_back(answered<AskStat>(repository.stat().value()));
  seeds.push_back(answered<AskAllPins>(repository.all_pins().value()));
  seeds.push_back(
      answered<AskVerify>(VerifyReport{.checked_bytes = 3,
                                       .corrupt = {{.version = name, .tensor = "w", .reason = "r", .record = "x"}},
                                       .unneeded = {{.what = "blob", .bytes = 3, .reason = "why"}}}));
  seeds.push_back(answered<Lend>(Lent{.lease = 1, .version = 2, .piece_bytes = 3, .channels = {{2, "tcp://*:1"}}}));
  seeds.push_back(input_of(failure(7, Error(Code::not_found, "no"))));
  seeds.push_back(input_of(reply(7, Invitation{.upload = 7, .tensors = {0, 1}, .window = 100})));
  seeds.push_back(input_of(reply(0, Pong{.running = {1, 2}})));
}

/// What was read can be said again, and is then read as the same.
template <typename Asked>
void read_answer(const Received<wire::Reply>& reply) {
  if (reply.verb() != kVerb<Asked>) return;
  const auto value = answer_in<Asked>(reply);
  if constexpr (!std::is_void_v<typename Asked::Answer>) {
    if (!value) return;
    const Encoded again = answer_to<Asked>(7, *value);
    const auto said = Received<wire::Reply>::open(bytes_of(again.data(), again.size()));
    FRESHET_CHECK(said.has_value() && answer_in<Asked>(*said).has_value());
  }
}

void take_as_question(Bytes bytes) {
  const auto question = Received<wire::Request>::open(bytes);
  if (!question) {
    FRESHET_CHECK(question.error().code() == Code::corrupt);
    return;
  }
  if (question->said() == nullptr) return;
  Answering with{.repository = *world().repository,
                 .records = world().records,
                 .bulk = *world().bulk,
                 .session = 1,
                 .progress = [](Encoded) {}};
  (void)step_in<Chunk>(*question);
  const Outcome outcome = answer(with, *question);
  if (outcome.upload != nullptr) return;
  const auto reply = Received<wire::Reply>::open(bytes_of(outcome.reply.data(), outcome.reply.size()));
  FRESHET_CHECK(reply.has_value() && (*reply)->request() == (*question)->request());
}

template <typename... Asked>
void read_answers(const Received<wire::Reply>& reply, std::type_identity<std::tuple<Asked...>>) {
  (read_answer<Asked>(reply), ...);
}

void take_as_answer(Bytes bytes) {
  const auto reply = Received<wire::Reply>::open(bytes);
  if (!reply) return;
  if ((*reply)->failed() != nullptr) (void)error_of(*(*reply)->failed());
  (void)step_in<Invitation>(*reply);
  (void)step_in<Pong>(*reply);
  read_answers(*reply, std::type_identity<Questions>());
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> seeds;
  add_questions(seeds);
  add_answers(seeds);
  return seeds;
}

}  // namespace freshet::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace freshet::fuzz;
  take_as_question(bytes_of_input(data, size));
  take_as_answer(bytes_of_input(data, size));
  return 0;
}
