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

template <typename Make>
Input asked(const Make& make) {
  Builder builder;
  return input_of(request(builder, 7, make(builder)));
}

template <typename Value>
Input answered(const Value& value) {
  Builder builder;
  return input_of(reply(builder, 7, rpc::put(builder, value)));
}

void add_questions(std::vector<Input>& seeds) {
  const TestVersion& first = world().versions[0];
  const TestVersion& last = world().versions[2];
  const wire::Id id = wire_id(last.manifest.id);
  const auto name = [&](Builder& builder) { return rpc::put(builder, last.manifest.name); };
  TestVersion next = last;
  next.manifest.id = test_id(9);
  next.manifest.owners = last.manifest.owners.with_written(next.manifest.id, std::vector<std::uint32_t>{1});
  const Manifest manifest = encodable(next.manifest).value();
  const Repository::PutOptions options{.quality = 0.5,
                                       .placed = Placed{.placement = 1, .attempt = 3, .elsewhere = {0}}};
  seeds.push_back(asked([&](Builder& b) { return rpc::put(b, manifest, {}); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskWanted(b, rpc::put(b, manifest, options)); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskRecord(b, name(b)); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskFind(b, &id); }));
  const std::vector<wire::Range> ranges = {wire::Range(4, 20, 0), wire::Range(0, 8, 1)};
  seeds.push_back(asked([&](Builder& b) {
    const auto version = name(b);
    return wire::CreateAskBytes(b, version, &id, b.CreateVectorOfStructs(ranges));
  }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskContributors(b, name(b)); }));
  seeds.push_back(asked([&](Builder& b) {
    const auto a = rpc::put(b, first.manifest.name);
    return wire::CreateAskDiff(b, a, name(b));
  }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskVerify(b, name(b)); }));
  MatchQuery query{.graph = MatchGraph::of(*last.manifest.architecture),
                   .top = 3,
                   .least_quality = 0.25,
                   .tags = {{"k", "v"}},
                   .exclude_lineage = first.manifest.name};
  seeds.push_back(asked([&](Builder& b) { return rpc::put(b, query); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateSettlePut(b, &id, 5); }));
  const wire::PinLease lease(1, 2);
  seeds.push_back(asked([&](Builder& b) { return wire::CreateRenewPins(b, &lease); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreatePin(b, name(b), b.CreateString("me"), false, &lease); }));
  seeds.push_back(asked([&](Builder& b) {
    const std::vector<wire::Segment> segments{rpc::wire_segment(last.manifest.owners[0])};
    const std::vector<wire::Digest> digests{wire::Digest(last.manifest.digests[0].low, last.manifest.digests[0].high)};
    const auto names = b.CreateVectorOfStructs(segments);
    const auto sizes = b.CreateVector(std::vector<std::uint64_t>{7});
    return wire::CreateReviveSegments(b, names, sizes, b.CreateVectorOfStructs(digests));
  }));
  seeds.push_back(asked([&](Builder& b) {
    const auto prefix = b.CreateString("number/");
    return wire::CreateListShared(b, prefix, b.CreateString("number/net"));
  }));
  seeds.push_back(asked([&](Builder& b) {
    const auto one = rpc::put(b, SharedRecord{.key = "placement", .value = "x"});
    const auto records = b.CreateVector(&one, 1);
    return wire::CreateChangeShared(b, records, records);
  }));
  const PutToken token = world().repository->part_puts().begin_put("net", test_id(10), manifest.architecture).value();
  const wire::Token wire_form = wire_token(token);
  seeds.push_back(asked([&](Builder& b) {
    const Bytes encoded = manifest.architecture->encoded();
    const auto model = b.CreateString("net");
    const auto bytes = b.CreateVector(reinterpret_cast<const std::uint8_t*>(encoded.data()), encoded.size());
    return wire::CreateBeginPut(b, model, &id, bytes);
  }));
  seeds.push_back(asked([&](Builder& b) {
    const TensorPart part{.tensor = 0, .offset = 4, .count = 3, .stride = 10, .length = 8, .bytes = {}, .digest = {}};
    const std::vector<wire::Part> parts{wire_part(part, last.manifest.digests[0]), wire_part(part, {})};
    return wire::CreatePutParts(b, &wire_form, b.CreateVectorOfStructs(parts));
  }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAskPartDigests(b, &wire_form); }));
  seeds.push_back(asked([&](Builder& b) { return wire::CreateAbortPut(b, &wire_form); }));
  seeds.push_back(asked([&](Builder& b) {
    const auto put = rpc::put(b, manifest, options);
    return wire::CreateCommitPut(b, &wire_form, put);
  }));
  seeds.push_back(asked([&](Builder& b) {
    return wire::CreateAddReferrer(
        b, rpc::put(b, ExternalReferrer{
                           .version = test_id(8), .attempt = 2, .home = "p1", .segments = {last.manifest.owners[0]}}));
  }));
}

void add_answers(std::vector<Input>& seeds) {
  const ProviderRepository& repository = *world().repository;
  const VersionName name = world().versions[2].manifest.name;
  seeds.push_back(answered(repository.get(name).value()));
  seeds.push_back(answered(repository.owners(name).value()));
  seeds.push_back(answered(repository.lineage(name).value()));
  seeds.push_back(answered(repository.contributors(name).value()));
  seeds.push_back(answered(repository.diff(world().versions[0].manifest.name, name).value()));
  seeds.push_back(answered(MatchAnswer{.top = {{.version = name, .id = test_id(3), .quality = 1.0}}, .as_of = 4}));
  seeds.push_back(answered(std::vector<Alias>{{"best", 2}}));
  seeds.push_back(answered(GcReport{
      .freed_bytes = 3, .rows = {{.writer = test_id(1), .version = name, .named_by = {name}}}, .notes = {"one"}}));
  seeds.push_back(answered(std::vector<ExternalReferrer>{{.version = test_id(8), .home = "p", .segments = {{}}}}));
  seeds.push_back(answered(repository.stat().value()));
  seeds.push_back(answered(VerifyReport{.checked_bytes = 3,
                                        .corrupt = {{.version = name, .tensor = "w", .reason = "r", .record = "x"}},
                                        .unneeded = {{.what = "blob", .bytes = 3, .reason = "why"}}}));
  seeds.push_back(input_of(failure(7, Error(Code::not_found, "no"))));
}

/// What was read can be said again, and is then read as the same.
template <typename Body>
void read_answer(const Body* body) {
  if (body == nullptr) return;
  const auto value = rpc::read(*body);
  if (!value) return;
  Builder builder;
  builder.Finish(rpc::put(builder, *value));
  const auto* again = flatbuffers::GetRoot<Body>(builder.GetBufferPointer());
  FRESHET_CHECK(rpc::read(*again).has_value());
}

void take_as_question(Bytes bytes) {
  const auto question = Received<wire::Request>::open(bytes);
  if (!question) {
    FRESHET_CHECK(question.error().code() == Code::corrupt);
    return;
  }
  Answering with{.repository = *world().repository,
                 .records = world().records,
                 .bulk = *world().bulk,
                 .session = 1,
                 .progress = [](Encoded) {}};
  const Outcome outcome = answer(with, **question);
  if (outcome.upload != nullptr) return;
  const auto reply = Received<wire::Reply>::open(bytes_of(outcome.reply.data(), outcome.reply.size()));
  FRESHET_CHECK(reply.has_value() && (*reply)->request() == (*question)->request());
}

void take_as_answer(Bytes bytes) {
  const auto reply = Received<wire::Reply>::open(bytes);
  if (!reply) return;
  if ((*reply)->failed() != nullptr) (void)error_of(*(*reply)->failed());
  const wire::Reply& said = **reply;
  read_answer(said.body_as_Record());
  read_answer(said.body_as_Owners());
  read_answer(said.body_as_Lineage());
  read_answer(said.body_as_Contributors());
  read_answer(said.body_as_Difference());
  read_answer(said.body_as_Stat());
  read_answer(said.body_as_Verified());
  read_answer(said.body_as_Matched());
  read_answer(said.body_as_Aliases());
  read_answer(said.body_as_Retired());
  read_answer(said.body_as_Collected());
  read_answer(said.body_as_Referrers());
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
