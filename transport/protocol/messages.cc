// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/messages.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/model/graph.h"
#include "transport/protocol/wire_generated.h"

// Decoding first lets FlatBuffers verify that every offset and length lies inside the message, then checks each field
// against the limits: no value that a later step would have to distrust leaves this file.

namespace freshet::protocol {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using Encoded = flatbuffers::Offset<void>;

const std::uint8_t* raw(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

/// Of UTF-8 that is well-formed: U+0080 to U+009F, which terminals obey as they do ESC, the marks and overrides of
/// direction, and the separators of lines.
bool has_wide_controls(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const auto at = [&](std::size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0U; };
    if (at(0) == 0xC2 && at(1) >= 0x80 && at(1) <= 0x9F) return true;
    if (at(0) == 0xD8 && at(1) == 0x9C) return true;
    if (at(0) != 0xE2) continue;
    if (at(1) == 0x80 && ((at(2) >= 0x8E && at(2) <= 0x8F) || (at(2) >= 0xA8 && at(2) <= 0xAE))) return true;
    if (at(1) == 0x81 && at(2) >= 0xA6 && at(2) <= 0xA9) return true;
  }
  return false;
}

/// An error's words, which may name a file or what somebody sent, so that whoever they are for can take them.
flatbuffers::Offset<flatbuffers::String> put_words(Builder& b, std::string_view words) {
  std::string fit = shown(words, kRefusalBytesMax);
  if (has_wide_controls(fit)) {
    std::replace_if(
        fit.begin(), fit.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  return b.CreateString(fit);
}

wire::Current put(const Current& current) { return {current.epoch, current.version, current.hold}; }

Encoded put(Builder& b, const Hello& m) {
  const auto model = b.CreateString(m.model);
  const auto label = b.CreateString(m.label);
  const auto host = b.CreateString(m.host);
  const auto serves = b.CreateString(m.serves);
  const auto device = b.CreateString(m.device);
  return wire::CreateHello(b, m.protocol, m.session, model, static_cast<std::uint8_t>(m.mode), label, m.pid, host,
                           m.highest_seen, m.after, m.door_token, m.channels, m.staged, serves, m.owed_all, device)
      .Union();
}

Encoded put(Builder& b, const Want& m) {
  std::vector<wire::Digest> known;
  for (const Digest& digest : m.known_architectures) known.emplace_back(digest.low, digest.high);
  return wire::CreateWant(b, m.session, m.request, m.after, b.CreateVectorOfStructs(known), m.after_epoch,
                          static_cast<std::uint8_t>(m.channel), m.exactly, m.waits, m.serving)
      .Union();
}

Encoded put(Builder& b, const Held& m) {
  return wire::CreateHeld(b, m.session, m.grants_seen, b.CreateVector(m.numbers)).Union();
}

Encoded put(Builder& b, const Ping& m) {
  return wire::CreatePing(b, m.session, m.serving, m.epoch, m.staged, m.sent_ns, b.CreateString(m.channel_why),
                          m.behind)
      .Union();
}

Encoded put(Builder& b, const Bye& m) { return wire::CreateBye(b, m.session, m.reads_on).Union(); }
Encoded put(Builder& b, const StatRequest& m) { return wire::CreateStatRequest(b, b.CreateString(m.model)).Union(); }

Encoded put(Builder& b, const Welcome& m) {
  const auto door = b.CreateString(m.door);
  std::vector<flatbuffers::Offset<wire::Channel>> channels;
  for (const ChannelOffer& offer : m.channels) {
    channels.push_back(wire::CreateChannel(b, static_cast<std::uint8_t>(offer.kind), b.CreateString(offer.address)));
  }
  const auto offers = b.CreateVector(channels);
  const wire::Current current = put(m.current);
  return wire::CreateWelcome(b, m.session, m.run.high, m.run.low, m.incarnation, /*announcements=*/0, door,
                             m.door_token, m.newest, offers, m.lease_ms, &current, m.membership_ms, m.keeps_wants,
                             m.first_number)
      .Union();
}

flatbuffers::Offset<flatbuffers::Vector<const wire::Place*>> put(Builder& b, const std::vector<SegmentPlace>& places) {
  wire::Place* place = nullptr;
  const auto offset = b.CreateUninitializedVectorOfStructs(places.size(), &place);
  for (const SegmentPlace& from : places) *place++ = wire::Place(from.offset, from.bytes, from.slab);
  return offset;
}

Encoded put(Builder& b, const Grant& m) {
  const auto manifest = b.CreateVector(raw(m.manifest), m.manifest.size());
  const auto architecture = b.CreateVector(raw(m.architecture), m.architecture.size());
  const auto places = put(b, m.places);
  const auto device_places = put(b, m.device_places);
  const auto device_slab_bytes = b.CreateVector(m.device_slab_bytes);
  const auto slab_bytes = b.CreateVector(m.slab_bytes);
  return wire::CreateGrant(b, m.session, m.request, m.grant, m.number, manifest, architecture, places, slab_bytes,
                           m.gap_before, m.publish_started_ns, m.announced_ns, m.epoch,
                           static_cast<std::uint8_t>(m.channel), m.lease, device_places, device_slab_bytes)
      .Union();
}

Encoded put(Builder& b, const Refusal& m) {
  const auto message = put_words(b, m.message);
  const wire::Current current = put(m.current);
  return wire::CreateRefusal(b, m.session, m.request, static_cast<std::uint8_t>(m.code), message, m.newest, &current)
      .Union();
}

Encoded put(Builder& b, const Pong& m) {
  const wire::Current current = put(m.current);
  return wire::CreatePong(b, m.session, m.incarnation, m.newest, &current, m.candidate, m.turn, m.ping_ns).Union();
}

Encoded put(Builder& b, const UnknownSession& m) { return wire::CreateUnknownSession(b, m.session).Union(); }
Encoded put(Builder& b, const StatReply& m) { return wire::CreateStatReply(b, b.CreateString(m.json)).Union(); }

Encoded put(Builder& b, const Announcement& m) {
  const wire::Current current = put(m.current);
  return wire::CreateAnnouncement(b, b.CreateString(m.model), m.incarnation, m.number, m.announced_ns, &current,
                                  m.candidate, m.turn)
      .Union();
}

flatbuffers::Offset<wire::Reason> put(Builder& b, const std::optional<Error>& error) {
  if (!error) return 0;
  return wire::CreateReason(b, static_cast<std::uint8_t>(error->code()), put_words(b, error->message()));
}

Encoded put(Builder& b, const Staged& m) {
  return wire::CreateStaged(b, m.session, m.number, put(b, m.failed), m.turn).Union();
}

Encoded put(Builder& b, const Activate& m) {
  const wire::Current expected = put(m.expected);
  const wire::Current desired = put(m.desired);
  return wire::CreateActivate(b, b.CreateString(m.model), m.request, &expected, &desired, m.as_group, m.within_ms)
      .Union();
}

Encoded put(Builder& b, const Activated& m) {
  const wire::Current current = put(m.current);
  return wire::CreateActivated(b, m.request, put(b, m.refused), &current, m.members, m.mixed_ns, m.behind).Union();
}

/// The order of Message's alternatives is the order of the schema's union, which starts at 1.
wire::Body kind_of(const Message& message) { return static_cast<wire::Body>(message.index() + 1); }
static_assert(std::variant_size_v<Message> == static_cast<std::size_t>(wire::Body::MAX));

tl::unexpected<Error> bad(std::string_view what) { return fail(Code::corrupt, format("message: {}", what)); }

Result<std::string> text(const flatbuffers::String* from, std::size_t bytes_max, std::string_view what) {
  if (from == nullptr) return std::string();
  if (from->size() > bytes_max)
    return bad(format("{} of {} bytes, at most {} are allowed", what, from->size(), bytes_max));
  return from->str();
}

/// For what people and file names see: UTF-8 without control characters.
Result<std::string> label(const flatbuffers::String* from, std::size_t bytes_max, std::string_view what) {
  FRESHET_ASSIGN(std::string value, text(from, bytes_max, what));
  if (value.empty()) return value;
  if (auto checked = check_label(what, value, bytes_max); !checked) return bad(checked.error().message());
  if (has_wide_controls(value)) return bad(format("{} holds control characters", what));
  return value;
}

Result<std::string> model_name(const flatbuffers::String* from) {
  FRESHET_ASSIGN(std::string name, text(from, kLabelBytesMax, "model"));
  if (auto checked = check_model_name(name); !checked) return bad(checked.error().message());
  return name;
}

Result<VersionNumber> number(std::uint64_t value, std::string_view what) {
  if (value > kNumberMax) return bad(format("{} {} is beyond every version number", what, value));
  return value;
}

/// "too many …", or nothing. A vector that is absent is an empty one. The verifier lets elements lie where the
/// processor may not read them: they must lie at a multiple of `alignment`, that of their type.
template <typename Vector>
Status check_count(const Vector* from, std::size_t max, std::string_view what,
                   std::size_t alignment = sizeof(std::uint64_t)) {
  if (from != nullptr && from->size() > max)
    return bad(format("{} {}, at most {} are allowed", from->size(), what, max));
  if (from != nullptr && from->size() != 0 && reinterpret_cast<std::uintptr_t>(from->Data()) % alignment != 0)
    return bad(format("its {} are not aligned", what));
  return {};
}

std::vector<std::byte> bytes_from(const flatbuffers::Vector<std::uint8_t>* from) {
  if (from == nullptr) return {};
  const auto* data = reinterpret_cast<const std::byte*>(from->data());
  return {data, data + from->size()};
}

std::vector<std::uint64_t> numbers_from(const flatbuffers::Vector<std::uint64_t>* from) {
  if (from == nullptr) return {};
  return {from->begin(), from->end()};
}

/// A message of an older schema has none: then nothing is current.
Result<Current> current_from(const wire::Current* from) {
  if (from == nullptr) return Current{};
  if (from->epoch() > kEpochMax) return bad(format("epoch {} is beyond every epoch", from->epoch()));
  Current current{.epoch = from->epoch(), .hold = from->hold()};
  FRESHET_ASSIGN(current.version, number(from->number(), "current version"));
  return current;
}

Result<Code> code_from(std::uint8_t code) {
  if (code > static_cast<std::uint8_t>(Code::io_error)) return bad(format("code {} is unknown", code));
  return static_cast<Code>(code);
}

Result<std::optional<Error>> reason_from(const wire::Reason* from) {
  if (from == nullptr) return std::optional<Error>();
  FRESHET_ASSIGN(const Code code, code_from(from->code()));
  FRESHET_ASSIGN(std::string message, label(from->message(), kRefusalBytesMax, "reason"));
  return Error(code, std::move(message));
}

Result<ChannelKind> channel_from(std::uint8_t kind) {
  if (kind > kChannelKindLast) return bad(format("channel {} is unknown", kind));
  return static_cast<ChannelKind>(kind);
}

Result<Message> take(const wire::Hello& m) {
  Hello hello{.protocol = m.protocol(), .session = m.session(), .pid = m.pid(), .door_token = m.door_token()};
  FRESHET_ASSIGN(hello.model, model_name(m.model()));
  FRESHET_ASSIGN(hello.label, label(m.label(), kLabelBytesMax, "label"));
  FRESHET_ASSIGN(hello.host, label(m.host(), kLabelBytesMax, "host"));
  FRESHET_ASSIGN(hello.after, number(m.after(), "after"));
  if (m.mode() > static_cast<std::uint8_t>(Mode::every)) return bad(format("mode {} is unknown", m.mode()));
  hello.mode = static_cast<Mode>(m.mode());
  if (m.highest_seen() > kHighestSeenMax) return bad(format("highest_seen {} leaves no numbers", m.highest_seen()));
  hello.highest_seen = m.highest_seen();
  hello.owed_all = m.owed_all();
  hello.channels = m.channels();
  hello.staged = m.staged();
  FRESHET_ASSIGN(hello.serves, label(m.serves(), kAddressBytesMax, "serves"));
  FRESHET_ASSIGN(hello.device, label(m.device(), kLabelBytesMax, "device"));
  return hello;
}

Result<Message> take(const wire::Want& m) {
  FRESHET_TRY(check_count(m.known_architectures(), kKnownArchitecturesMax, "known architectures"));
  Want want{.session = m.session(), .request = m.request()};
  FRESHET_ASSIGN(want.after, number(m.after(), "after"));
  if (m.known_architectures() != nullptr) {
    for (const wire::Digest* known : *m.known_architectures()) {
      want.known_architectures.push_back({.low = known->low(), .high = known->high()});
    }
  }
  want.after_epoch = m.after_epoch();
  FRESHET_ASSIGN(want.channel, channel_from(m.channel()));
  FRESHET_ASSIGN(want.exactly, number(m.exactly(), "exactly"));
  want.waits = m.waits();
  FRESHET_ASSIGN(want.serving, number(m.serving(), "serving"));
  return want;
}

Result<Message> take(const wire::Held& m) {
  FRESHET_TRY(check_count(m.numbers(), kHeldMax, "versions held"));
  return Held{.session = m.session(), .grants_seen = m.grants_seen(), .numbers = numbers_from(m.numbers())};
}

Result<Message> take(const wire::Ping& m) {
  Ping ping{.session = m.session(), .epoch = m.epoch(), .sent_ns = m.sent_ns()};
  FRESHET_ASSIGN(ping.serving, number(m.serving(), "serving"));
  FRESHET_ASSIGN(ping.staged, number(m.staged(), "staged"));
  FRESHET_ASSIGN(ping.channel_why, label(m.channel_why(), kLabelBytesMax, "reason for a channel"));
  ping.behind = std::min(m.behind(), kBehindMax);
  return ping;
}

Result<Message> take(const wire::Bye& m) { return Bye{.session = m.session(), .reads_on = m.reads_on()}; }

Result<Message> take(const wire::StatRequest& m) {
  if (m.model() == nullptr || m.model()->size() == 0) return StatRequest{};
  StatRequest request;
  FRESHET_ASSIGN(request.model, model_name(m.model()));
  return request;
}

Result<Message> take(const wire::Welcome& m) {
  Welcome welcome{.session = m.session(),
                  .run = {.high = m.run_high(), .low = m.run_low()},
                  .incarnation = m.incarnation(),
                  .door_token = m.door_token()};
  FRESHET_ASSIGN(welcome.door, label(m.door(), kAddressBytesMax, "door"));
  FRESHET_ASSIGN(welcome.newest, number(m.newest(), "newest"));
  FRESHET_TRY(check_count(m.channels(), kChannelsMax, "channels", alignof(flatbuffers::uoffset_t)));
  if (m.channels() != nullptr) {
    for (const wire::Channel* from : *m.channels()) {
      ChannelOffer offer;
      FRESHET_ASSIGN(offer.kind, channel_from(from->kind()));
      FRESHET_ASSIGN(offer.address, label(from->address(), kAddressBytesMax, "a channel's address"));
      welcome.channels.push_back(std::move(offer));
    }
  }
  welcome.lease_ms = m.lease_ms();
  welcome.membership_ms = m.membership_ms();
  welcome.keeps_wants = m.keeps_wants();
  FRESHET_ASSIGN(welcome.first_number, number(m.first_number(), "first_number"));
  FRESHET_ASSIGN(welcome.current, current_from(m.current()));
  return welcome;
}

std::vector<SegmentPlace> places_from(const flatbuffers::Vector<const wire::Place*>* from) {
  std::vector<SegmentPlace> places;
  if (from == nullptr) return places;
  places.reserve(from->size());
  for (const wire::Place* place : *from) {
    places.push_back({.slab = place->slab(), .offset = place->offset(), .bytes = place->bytes()});
  }
  return places;
}

Status check_places(const std::vector<SegmentPlace>& places, const std::vector<std::uint64_t>& slab_bytes,
                    bool is_on_device) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const SegmentPlace& place = places[i];
    if (is_on_device && place.bytes == 0) continue;
    const bool inside = place.slab < slab_bytes.size() && place.offset <= slab_bytes[place.slab] &&
                        place.bytes <= slab_bytes[place.slab] - place.offset;
    if (!inside) {
      return bad(format("the place of tensor {} is outside the slabs{}", i, is_on_device ? " of device memory" : ""));
    }
  }
  return {};
}

Result<Message> take(const wire::Grant& m) {
  FRESHET_TRY(check_count(m.manifest(), kManifestBytesMax, "bytes of manifest", 1));
  FRESHET_TRY(check_count(m.places(), kTensorsMax, "places"));
  FRESHET_TRY(check_count(m.slab_bytes(), kSlabsMax, "slabs"));
  FRESHET_TRY(check_count(m.device_places(), kTensorsMax, "places in device memory"));
  FRESHET_TRY(check_count(m.device_slab_bytes(), kSlabsMax, "slabs of device memory"));
  Grant grant{.session = m.session(), .request = m.request(), .grant = m.grant()};
  FRESHET_ASSIGN(grant.number, number(m.number(), "number"));
  if (grant.number == 0) return bad("a grant of version 0");
  if (grant.grant == 0) return bad("a grant without its id");
  grant.manifest = bytes_from(m.manifest());
  grant.architecture = bytes_from(m.architecture());
  grant.places = places_from(m.places());
  grant.slab_bytes = numbers_from(m.slab_bytes());
  FRESHET_TRY(check_places(grant.places, grant.slab_bytes, /*is_on_device=*/false));
  grant.device_places = places_from(m.device_places());
  grant.device_slab_bytes = numbers_from(m.device_slab_bytes());
  FRESHET_TRY(check_places(grant.device_places, grant.device_slab_bytes, /*is_on_device=*/true));
  if (!grant.device_places.empty() && grant.device_places.size() != grant.places.size()) {
    return bad(format("{} places in device memory of {} tensors", grant.device_places.size(), grant.places.size()));
  }
  FRESHET_ASSIGN(grant.gap_before, number(m.gap_before(), "gap_before"));
  grant.publish_started_ns = m.publish_started_ns();
  grant.announced_ns = m.announced_ns();
  grant.epoch = m.epoch();
  FRESHET_ASSIGN(grant.channel, channel_from(m.channel()));
  grant.lease = m.lease();
  if (grant.lease != 0 && !grant.places.empty()) return bad("a grant with a lease and with places");
  return grant;
}

Result<Message> take(const wire::Refusal& m) {
  Refusal refusal{.session = m.session(), .request = m.request()};
  FRESHET_ASSIGN(refusal.code, code_from(m.code()));
  FRESHET_ASSIGN(refusal.message, label(m.message(), kRefusalBytesMax, "refusal"));
  FRESHET_ASSIGN(refusal.newest, number(m.newest(), "newest"));
  FRESHET_ASSIGN(refusal.current, current_from(m.current()));
  return refusal;
}

Result<Message> take(const wire::Pong& m) {
  Pong pong{.session = m.session(), .incarnation = m.incarnation(), .turn = m.turn(), .ping_ns = m.ping_ns()};
  FRESHET_ASSIGN(pong.newest, number(m.newest(), "newest"));
  FRESHET_ASSIGN(pong.current, current_from(m.current()));
  FRESHET_ASSIGN(pong.candidate, number(m.candidate(), "candidate"));
  return pong;
}

Result<Message> take(const wire::UnknownSession& m) { return UnknownSession{.session = m.session()}; }

Result<Message> take(const wire::StatReply& m) {
  StatReply reply;
  FRESHET_ASSIGN(reply.json, text(m.json(), kStatBytesMax, "statistics"));
  return reply;
}

Result<Message> take(const wire::Announcement& m) {
  Announcement news{.incarnation = m.incarnation(), .announced_ns = m.announced_ns(), .turn = m.turn()};
  FRESHET_ASSIGN(news.model, model_name(m.model()));
  FRESHET_ASSIGN(news.number, number(m.number(), "number"));
  FRESHET_ASSIGN(news.current, current_from(m.current()));
  FRESHET_ASSIGN(news.candidate, number(m.candidate(), "candidate"));
  return news;
}

Result<Message> take(const wire::Staged& m) {
  Staged staged{.session = m.session(), .turn = m.turn()};
  FRESHET_ASSIGN(staged.number, number(m.number(), "staged"));
  FRESHET_ASSIGN(staged.failed, reason_from(m.failed()));
  return staged;
}

Result<Message> take(const wire::Activate& m) {
  Activate activate{.request = m.request(), .as_group = m.as_group(), .within_ms = m.within_ms()};
  FRESHET_ASSIGN(activate.model, model_name(m.model()));
  FRESHET_ASSIGN(activate.expected, current_from(m.expected()));
  FRESHET_ASSIGN(activate.desired, current_from(m.desired()));
  if (activate.within_ms > kWithinMsMax) return bad(format("a deadline of {} ms", activate.within_ms));
  return activate;
}

Result<Message> take(const wire::Activated& m) {
  Activated activated{.request = m.request(), .members = m.members(), .mixed_ns = m.mixed_ns(), .behind = m.behind()};
  FRESHET_ASSIGN(activated.refused, reason_from(m.refused()));
  FRESHET_ASSIGN(activated.current, current_from(m.current()));
  return activated;
}

Result<Message> take_body(const wire::Envelope& envelope) {
  switch (envelope.body_type()) {
    case wire::Body::Hello: return take(*envelope.body_as_Hello());
    case wire::Body::Want: return take(*envelope.body_as_Want());
    case wire::Body::Held: return take(*envelope.body_as_Held());
    case wire::Body::Ping: return take(*envelope.body_as_Ping());
    case wire::Body::Bye: return take(*envelope.body_as_Bye());
    case wire::Body::StatRequest: return take(*envelope.body_as_StatRequest());
    case wire::Body::Welcome: return take(*envelope.body_as_Welcome());
    case wire::Body::Grant: return take(*envelope.body_as_Grant());
    case wire::Body::Refusal: return take(*envelope.body_as_Refusal());
    case wire::Body::Pong: return take(*envelope.body_as_Pong());
    case wire::Body::UnknownSession: return take(*envelope.body_as_UnknownSession());
    case wire::Body::StatReply: return take(*envelope.body_as_StatReply());
    case wire::Body::Announcement: return take(*envelope.body_as_Announcement());
    case wire::Body::Staged: return take(*envelope.body_as_Staged());
    case wire::Body::Activate: return take(*envelope.body_as_Activate());
    case wire::Body::Activated: return take(*envelope.body_as_Activated());
    case wire::Body::NONE: break;
  }
  return bad("its kind is unknown");
}

Result<Message> decode_aligned(const std::uint8_t* data, std::size_t bytes) {
  flatbuffers::Verifier verifier(data, bytes, /*max_depth=*/8, /*max_tables=*/8 + kChannelsMax);
  if (!wire::VerifyEnvelopeBuffer(verifier)) return bad("not a whole message of this protocol");
  const wire::Envelope& envelope = *wire::GetEnvelope(data);
  if (envelope.body() == nullptr) return bad("it is empty");
  return take_body(envelope);
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Builder builder;
  const Encoded body = std::visit([&](const auto& m) { return put(builder, m); }, message);
  wire::FinishEnvelopeBuffer(builder, wire::CreateEnvelope(builder, kind_of(message), body));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

Result<Message> decode(Bytes bytes) {
  if (bytes.size() > kMessageBytesMax) {
    return bad(format("{} bytes, at most {} are allowed", bytes.size(), kMessageBytesMax));
  }
  if (bytes.size() < 2 * sizeof(flatbuffers::uoffset_t) + sizeof(flatbuffers::soffset_t)) return bad("too short");
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (reinterpret_cast<std::uintptr_t>(data) % sizeof(std::uint64_t) == 0) return decode_aligned(data, bytes.size());
  // The verifier measures alignment from the first byte, so this one must be aligned itself.
  std::vector<std::uint64_t> aligned((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  auto* copy = reinterpret_cast<std::byte*>(aligned.data());
  std::copy(bytes.begin(), bytes.end(), copy);
  return decode_aligned(reinterpret_cast<const std::uint8_t*>(copy), bytes.size());
}

}  // namespace freshet::protocol
