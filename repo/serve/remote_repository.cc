#include "repo/serve/remote_repository.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/mutex.h"
#include "repo/serve/link.h"
#include "repo/serve/messages.h"
#include "transport/deadline.h"

namespace freshet {
namespace rpc {
namespace {

constexpr Duration kLong = std::chrono::hours(24);
constexpr std::size_t kReadsInFlight = 8;
constexpr std::uint64_t kSentChunkBytes = std::uint64_t{512} << 10;
static_assert(kSentChunkBytes <= kChunkBytesMax);

template <typename Body>
Result<const Body*> body_of(const Response& response) {
  if (response->body_type() != wire::AnswerTraits<Body>::enum_value || response->body() == nullptr) {
    return fail(Code::corrupt, "the repository's server answered something else than was asked");
  }
  return static_cast<const Body*>(response->body());
}

class RemoteRepository final : public Repository {
 public:
  RemoteRepository(Link::Options link_options, RemoteRepositoryOptions options)
      : link_options_(std::move(link_options)), options_(std::move(options)) {}
  Status connect() {
    FRESHET_ASSIGN(const auto opened, link());
    return {};
  }

  Result<VersionName> put(const Manifest& manifest, const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                          PutOptions options) override;
  Result<VersionRecord> get(const VersionName& name) const override;
  Result<VersionNumber> latest(const std::string& model) const override;
  Result<std::optional<VersionName>> find(const VersionId& id) const override;
  Status read(const VersionRecord& record, std::span<const TensorRead> reads) const override;
  Result<std::vector<std::uint32_t>> wanted(const Manifest& manifest) const override;
  Status read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                    MutableBytes out) const override;
  Result<std::vector<OwnerRow>> owners(const VersionName& name) const override;
  Result<std::vector<LineageRow>> lineage(const VersionName& name) const override;
  Result<std::optional<VersionName>> mrca(const VersionName& a, const VersionName& b) const override;
  Result<std::vector<LineageRow>> descendants(const VersionName& name) const override;
  Result<std::vector<ContributorRow>> contributors(const VersionName& name) const override;
  Result<VersionDiff> diff(const VersionName& a, const VersionName& b) const override;
  Result<std::vector<std::string>> models() const override;
  Result<std::vector<LineageRow>> versions(const std::string& model) const override;
  Status pin(const VersionName& name, const std::string& by) override { return change_pin(name, by, false); }
  Status unpin(const VersionName& name, const std::string& by) override { return change_pin(name, by, true); }
  Result<std::vector<std::string>> pins(const VersionName& name) const override;
  Result<RepositoryStat> stat() const override;
  Result<VerifyReport> verify(const std::optional<VersionName>& name, const Progress& progress) const override;

 private:
  struct Range {
    wire::Range range;
    MutableBytes out;
  };
  using Ranges = std::vector<Range>;

  /// The connection, made anew when the last one is dead.
  Result<std::shared_ptr<Link>> link() const FRESHET_EXCLUDES(mutex_);

  /// Asks, and waits for the answer; once more when the connection broke meanwhile and the question changes nothing.
  template <typename Build>
  Result<Response> ask(Build build, Duration at_most, const Progress& progress = {}) const;
  template <typename Build>
  Result<Response> ask(Build build) const {
    return ask(build, options_.answer);
  }
  /// Asks what changes the repository.
  template <typename Build>
  Result<Response> tell(Build build, Duration at_most) const;
  Result<Response> last_answer(Conversation& conversation, Duration at_most, const Progress& progress) const;
  template <typename Body, typename Build>
  auto value(Build build) const -> decltype(rpc::read(std::declval<const Body&>()));
  template <typename Build>
  Result<std::optional<VersionName>> name(Build build) const;
  template <typename Build>
  Result<std::vector<std::string>> texts(Build build) const;

  Status change_pin(const VersionName& name, const std::string& by, bool undo);
  Status send_tensors(Conversation& conversation, const wire::Upload& upload, const Manifest& manifest,
                      const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of) const;
  Status read_ranges(const VersionRecord& record, const Ranges& ranges) const;
  Result<Conversation> begin_read(Link& link, const VersionRecord& record, std::span<const Range> ranges) const;
  Status end_read(Conversation& conversation, std::span<const Range> ranges) const;

  const Link::Options link_options_;
  const RemoteRepositoryOptions options_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<Link> link_ FRESHET_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<Link>> RemoteRepository::link() const {
  const MutexLock lock(mutex_);
  if (link_ != nullptr && !link_->is_dead()) return link_;
  // Under the lock: whoever else wants the connection has to wait for it anyhow, no longer than this may take.
  FRESHET_ASSIGN(link_, Link::open(link_options_, deadline_in(options_.connect)));
  return link_;
}

Result<Response> RemoteRepository::last_answer(Conversation& conversation, Duration at_most,
                                               const Progress& progress) const {
  const Time deadline = deadline_in(at_most);
  for (;;) {
    FRESHET_ASSIGN(Response response, conversation.next(deadline));
    const auto* const step = response->body_as_Progress();
    if (step == nullptr) return response;
    if (progress) progress(step->done(), step->total());
  }
}

template <typename Build>
Result<Response> RemoteRepository::tell(Build build, Duration at_most) const {
  FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
  FRESHET_ASSIGN(Conversation conversation, connection->begin(build));
  return last_answer(conversation, at_most, {});
}

template <typename Build>
Result<Response> RemoteRepository::ask(Build build, Duration at_most, const Progress& progress) const {
  for (bool again = false;; again = true) {
    FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
    Result<Conversation> conversation = connection->begin(build);
    Result<Response> response =
        conversation ? last_answer(*conversation, at_most, progress) : Result<Response>(fail(conversation.error()));
    if (response || again || !connection->is_dead()) return response;
  }
}

template <typename Body, typename Build>
auto RemoteRepository::value(Build build) const -> decltype(rpc::read(std::declval<const Body&>())) {
  FRESHET_ASSIGN(const Response response, ask(build));
  FRESHET_ASSIGN(const Body* const body, body_of<Body>(response));
  return rpc::read(*body);
}

template <typename Build>
Result<std::optional<VersionName>> RemoteRepository::name(Build build) const {
  FRESHET_ASSIGN(const Response response, ask(build));
  FRESHET_ASSIGN(const wire::Named* const named, body_of<wire::Named>(response));
  if (named->name() == nullptr) return std::optional<VersionName>();
  FRESHET_ASSIGN(VersionName read_name, rpc::read(named->name()));
  return std::optional(std::move(read_name));
}

template <typename Build>
Result<std::vector<std::string>> RemoteRepository::texts(Build build) const {
  FRESHET_ASSIGN(const Response response, ask(build));
  FRESHET_ASSIGN(const wire::Texts* const read_texts, body_of<wire::Texts>(response));
  return rpc::read(read_texts->texts());
}

Result<VersionName> RemoteRepository::put(const Manifest& manifest,
                                          const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of,
                                          PutOptions options) {
  // The encoded form takes valid ones only; a number that is to be given is no fault here.
  Manifest checked = manifest;
  if (checked.name.number == 0) checked.name.number = 1;
  FRESHET_TRY(check(checked));
  FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
  FRESHET_ASSIGN(Conversation conversation, connection->begin([&](Builder& builder) {
    const auto version = rpc::put(builder, manifest);
    const auto quality =
        options.quality ? flatbuffers::Optional<double>(*options.quality) : flatbuffers::Optional<double>();
    return wire::CreatePut(builder, version, quality, options.has_weights);
  }));
  for (;;) {
    FRESHET_ASSIGN(const Response response, last_answer(conversation, kLong, {}));
    if (const auto* const upload = response->body_as_Upload()) {
      Status sent = send_tensors(conversation, *upload, manifest, bytes_of);
      if (!sent) return fail(std::move(sent).error());
    } else if (response->body_type() != wire::Answer::Credit) {
      FRESHET_ASSIGN(const wire::Named* const named, body_of<wire::Named>(response));
      return rpc::read(named->name());
    }
  }
}

Status RemoteRepository::send_tensors(Conversation& conversation, const wire::Upload& upload, const Manifest& manifest,
                                      const std::function<Result<Bytes>(std::uint32_t tensor)>& bytes_of) const {
  const auto tensors = manifest.architecture->tensors();
  std::uint64_t credit = upload.window();
  std::uint64_t offset = 0;
  for (const std::uint32_t tensor : copied(upload.tensors())) {
    if (tensor >= tensors.size()) return fail(Code::corrupt, "the repository's server wants a tensor that is none");
    Result<Bytes> bytes = bytes_of(tensor);
    if (bytes && bytes->size() != tensors[tensor].bytes()) {
      bytes = fail(Code::corrupt, format("{} bytes were given for {}", bytes->size(), tensors[tensor].bytes()));
    }
    if (!bytes) {
      conversation.abandon();
      return fail(std::move(bytes).error().with_context(
          format("put {}: {} {}", to_string(manifest.name), to_string(manifest.name), tensors[tensor].name)));
    }
    for (std::uint64_t at = 0; at < bytes->size();) {
      const std::uint64_t count = std::min<std::uint64_t>(kSentChunkBytes, bytes->size() - at);
      while (credit < count) {
        FRESHET_ASSIGN(const Response response, conversation.next(deadline_in(kLong)));
        FRESHET_ASSIGN(const wire::Credit* const more, body_of<wire::Credit>(response));
        credit += more->bytes();
      }
      conversation.send_chunk(offset, bytes->subspan(at, count));
      credit -= count;
      offset += count;
      at += count;
    }
  }
  return {};
}

Result<VersionRecord> RemoteRepository::get(const VersionName& asked) const {
  return value<wire::Record>(
      [&](Builder& builder) { return wire::CreateAskRecord(builder, rpc::put(builder, asked)); });
}

Result<VersionNumber> RemoteRepository::latest(const std::string& model) const {
  FRESHET_ASSIGN(const Response response,
                 ask([&](Builder& builder) { return wire::CreateAskLatest(builder, builder.CreateString(model)); }));
  FRESHET_ASSIGN(const wire::Number* const number, body_of<wire::Number>(response));
  return number->value();
}

Result<std::optional<VersionName>> RemoteRepository::find(const VersionId& id) const {
  return name([&](Builder& builder) {
    const wire::Id wire_form = wire_id(id);
    return wire::CreateAskFind(builder, &wire_form);
  });
}

Result<std::vector<std::uint32_t>> RemoteRepository::wanted(const Manifest& manifest) const {
  FRESHET_ASSIGN(const Response response,
                 ask([&](Builder& builder) { return wire::CreateAskWanted(builder, rpc::put(builder, manifest)); }));
  FRESHET_ASSIGN(const wire::Tensors* const tensors, body_of<wire::Tensors>(response));
  return copied(tensors->tensors());
}

Result<std::vector<OwnerRow>> RemoteRepository::owners(const VersionName& asked) const {
  return value<wire::Owners>(
      [&](Builder& builder) { return wire::CreateAskOwners(builder, rpc::put(builder, asked)); });
}

Result<std::vector<LineageRow>> RemoteRepository::lineage(const VersionName& asked) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskLineage(builder, rpc::put(builder, asked)); });
}

Result<std::optional<VersionName>> RemoteRepository::mrca(const VersionName& a, const VersionName& b) const {
  return name([&](Builder& builder) {
    const auto first = rpc::put(builder, a);
    return wire::CreateAskCommonAncestor(builder, first, rpc::put(builder, b));
  });
}

Result<std::vector<LineageRow>> RemoteRepository::descendants(const VersionName& asked) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskDescendants(builder, rpc::put(builder, asked)); });
}

Result<std::vector<ContributorRow>> RemoteRepository::contributors(const VersionName& asked) const {
  return value<wire::Contributors>(
      [&](Builder& builder) { return wire::CreateAskContributors(builder, rpc::put(builder, asked)); });
}

Result<VersionDiff> RemoteRepository::diff(const VersionName& a, const VersionName& b) const {
  return value<wire::Difference>([&](Builder& builder) {
    const auto first = rpc::put(builder, a);
    return wire::CreateAskDiff(builder, first, rpc::put(builder, b));
  });
}

Result<std::vector<std::string>> RemoteRepository::models() const {
  return texts([](Builder& builder) { return wire::CreateAskModels(builder); });
}

Result<std::vector<LineageRow>> RemoteRepository::versions(const std::string& model) const {
  return value<wire::Lineage>(
      [&](Builder& builder) { return wire::CreateAskVersions(builder, builder.CreateString(model)); });
}

Status RemoteRepository::change_pin(const VersionName& pinned, const std::string& by, bool undo) {
  FRESHET_ASSIGN(const Response response, tell(
                                              [&](Builder& builder) {
                                                const auto version = rpc::put(builder, pinned);
                                                return wire::CreatePin(builder, version, builder.CreateString(by),
                                                                       undo);
                                              },
                                              options_.answer));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Result<std::vector<std::string>> RemoteRepository::pins(const VersionName& asked) const {
  return texts([&](Builder& builder) { return wire::CreateAskPins(builder, rpc::put(builder, asked)); });
}

Result<RepositoryStat> RemoteRepository::stat() const {
  return value<wire::Stat>([](Builder& builder) { return wire::CreateAskStat(builder); });
}

Result<VerifyReport> RemoteRepository::verify(const std::optional<VersionName>& asked, const Progress& progress) const {
  FRESHET_ASSIGN(const Response response, ask(
                                              [&](Builder& builder) {
                                                const auto version =
                                                    asked ? rpc::put(builder, *asked) : Offset<wire::Name>();
                                                return wire::CreateAskVerify(builder, version);
                                              },
                                              kLong, progress));
  FRESHET_ASSIGN(const wire::Verified* const verified, body_of<wire::Verified>(response));
  return rpc::read(*verified);
}

Status RemoteRepository::read(const VersionRecord& record, std::span<const TensorRead> reads) const {
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  if (!record.has_weights) return fail(Code::failed_precondition, to_string(manifest.name) + " has no weights");
  Ranges ranges;
  for (const TensorRead& one : reads) {
    if (one.tensor >= tensors.size()) {
      return fail(Code::invalid_argument, format("{} has no tensor {}", to_string(manifest.name), one.tensor));
    }
    if (one.out.size() != tensors[one.tensor].bytes()) {
      return fail(Code::invalid_argument,
                  format("{} {}: {} bytes of room for {}", to_string(manifest.name), tensors[one.tensor].name,
                         one.out.size(), tensors[one.tensor].bytes()));
    }
    for (std::uint64_t at = 0; at < one.out.size(); at += kDataBytesMax) {
      const std::uint64_t bytes = std::min(kDataBytesMax, one.out.size() - at);
      ranges.push_back({.range = wire::Range(at, bytes, one.tensor), .out = one.out.subspan(at, bytes)});
    }
  }
  FRESHET_TRY(read_ranges(record, ranges));
  for (const TensorRead& one : reads) {
    if (digest_of(one.out) == manifest.digests[one.tensor]) continue;
    return fail(Code::corrupt,
                format("{} {}: its bytes do not match its digest", to_string(manifest.name), tensors[one.tensor].name));
  }
  return {};
}

Status RemoteRepository::read_range(const VersionRecord& record, std::uint32_t tensor, std::uint64_t offset,
                                    MutableBytes out) const {
  Ranges ranges;
  for (std::uint64_t at = 0; at < out.size(); at += kDataBytesMax) {
    const std::uint64_t bytes = std::min(kDataBytesMax, out.size() - at);
    ranges.push_back({.range = wire::Range(offset + at, bytes, tensor), .out = out.subspan(at, bytes)});
  }
  return read_ranges(record, ranges);
}

Result<Conversation> RemoteRepository::begin_read(Link& connection, const VersionRecord& record,
                                                  std::span<const Range> ranges) const {
  return connection.begin([&](Builder& builder) {
    const auto version = rpc::put(builder, record.manifest.name);
    const wire::Id id = wire_id(record.manifest.id);
    std::vector<wire::Range> asked;
    for (const Range& range : ranges) asked.push_back(range.range);
    return wire::CreateAskBytes(builder, version, &id, builder.CreateVectorOfStructs(asked));
  });
}

Status RemoteRepository::end_read(Conversation& conversation, std::span<const Range> ranges) const {
  FRESHET_ASSIGN(const Response response, conversation.next(deadline_in(options_.answer)));
  FRESHET_ASSIGN(const wire::Data* const data, body_of<wire::Data>(response));
  Bytes bytes = data_of(data->bytes());
  for (const Range& range : ranges) {
    if (bytes.size() < range.out.size()) return fail(Code::corrupt, "the repository's server sent too few bytes");
    std::copy_n(bytes.begin(), range.out.size(), range.out.begin());
    bytes = bytes.subspan(range.out.size());
  }
  return {};
}

Status RemoteRepository::read_ranges(const VersionRecord& record, const Ranges& ranges) const {
  FRESHET_ASSIGN(const std::shared_ptr<Link> connection, link());
  struct UnderWay {
    Conversation conversation;
    std::span<const Range> ranges;
  };
  std::deque<UnderWay> under_way;
  for (std::size_t at = 0; at < ranges.size() || !under_way.empty();) {
    if (at == ranges.size() || under_way.size() == kReadsInFlight) {
      FRESHET_TRY(end_read(under_way.front().conversation, under_way.front().ranges));
      under_way.pop_front();
      continue;
    }
    std::size_t end = at;
    std::uint64_t bytes = 0;
    while (end < ranges.size() && end - at < kRangesMax && bytes + ranges[end].out.size() <= kDataBytesMax) {
      bytes += ranges[end++].out.size();
    }
    const auto batch = std::span(ranges).subspan(at, end - at);
    FRESHET_ASSIGN(Conversation conversation, begin_read(*connection, record, batch));
    under_way.push_back({std::move(conversation), batch});
    at = end;
  }
  return {};
}

}  // namespace
}  // namespace rpc

Result<std::unique_ptr<Repository>> connect_repository(const std::string& address, RemoteRepositoryOptions options) {
  FRESHET_ASSIGN(std::optional<ClientCredentials> credentials, client_credentials(options.security));
  rpc::Link::Options link{.address = address, .credentials = std::move(credentials), .times = {}};
  link.times.silence = options.silence;
  auto repository = std::make_unique<rpc::RemoteRepository>(std::move(link), std::move(options));
  FRESHET_TRY(repository->connect());
  return repository;
}

}  // namespace freshet
