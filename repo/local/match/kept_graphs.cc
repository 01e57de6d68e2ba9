// SPDX-License-Identifier: Apache-2.0
#include "repo/local/match/kept_graphs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

namespace freshet {
namespace {

// An entry: the architecture's digest, how many bytes the graph has, the graph, and the seal: a digest of all of that.
constexpr std::size_t kSealBytes = 16;
constexpr std::size_t kEntryHeadBytes = 16 + sizeof(std::uint32_t);

// A vertex: its slot, then how many inputs it has, four times that with the kind in the lower two bits, then the bytes
// of its tensors if it is parametric, then for each input how many vertices before this one that stands.
constexpr std::uint64_t kInputKind = 1;
constexpr std::uint64_t kParametricKind = 2;

Digest load_digest(std::string_view from) {
  const Bytes bytes = bytes_of(from.data(), from.size());
  return {.low = load_little_endian<std::uint64_t>(bytes.data()),
          .high = load_little_endian<std::uint64_t>(bytes.data() + 8)};
}

void append_digest(std::string& out, const Digest& digest) {
  std::byte bytes[16];
  store_little_endian(bytes, digest.low);
  store_little_endian(bytes + 8, digest.high);
  out.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

// Seven bits a byte, the lowest first; all but the last have the eighth.
void append_number(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<char>(number | 0x80));
  out.push_back(static_cast<char>(number));
}

/// Takes numbers and slots off the front; every function says whether there was one.
class GraphBytes {
 public:
  explicit GraphBytes(std::string_view text) : text_(text) {}

  bool take(std::uint64_t& number) {
    number = 0;
    for (unsigned shift = 0; shift < 64 && !text_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(text_.front());
      text_.remove_prefix(1);
      number |= std::uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  bool take(SlotId& slot) {
    if (text_.size() < slot.bytes.size()) return false;
    std::memcpy(slot.bytes.data(), text_.data(), slot.bytes.size());
    text_.remove_prefix(slot.bytes.size());
    return true;
  }
  std::size_t left() const { return text_.size(); }

 private:
  std::string_view text_;
};

std::optional<MatchGraph::Parts> decode_graph(std::string_view text) {
  GraphBytes from(text);
  std::uint64_t vertices = 0;
  // Each has a slot at least, so no length makes a small text take much memory.
  if (!from.take(vertices) || vertices > from.left() / sizeof(SlotId)) return std::nullopt;
  MatchGraph::Parts parts;
  parts.vertices.resize(vertices);
  parts.input_starts.reserve(vertices + 1);
  parts.input_starts.push_back(0);
  parts.inputs.reserve(vertices);
  for (std::uint64_t i = 0; i < vertices; ++i) {
    MatchGraph::Vertex& vertex = parts.vertices[i];
    std::uint64_t head = 0;
    if (!from.take(vertex.slot) || !from.take(head)) return std::nullopt;
    vertex.is_input = (head & kInputKind) != 0;
    vertex.parametric = (head & kParametricKind) != 0;
    if (vertex.parametric && !from.take(vertex.bytes)) return std::nullopt;
    const std::uint64_t inputs = head >> 2;
    if (inputs > from.left()) return std::nullopt;
    for (std::uint64_t input = 0; input < inputs; ++input) {
      std::uint64_t before = 0;
      if (!from.take(before) || before > i) return std::nullopt;
      parts.inputs.push_back(static_cast<std::uint32_t>(i - before));
    }
    parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
  }
  if (from.left() != 0) return std::nullopt;
  return parts;
}

}  // namespace

std::string encode_kept_graph(const Digest& architecture, const MatchGraph& graph) {
  std::string entry;
  entry.reserve(kEntryHeadBytes + graph.size() * 24 + kSealBytes);
  append_digest(entry, architecture);
  entry.append(sizeof(std::uint32_t), '\0');
  append_number(entry, graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const MatchGraph::Vertex& vertex = graph[i];
    const auto inputs = graph.inputs_of(i);
    entry.append(reinterpret_cast<const char*>(vertex.slot.bytes.data()), vertex.slot.bytes.size());
    append_number(entry, std::uint64_t{inputs.size()} << 2 | (vertex.is_input ? kInputKind : 0) |
                             (vertex.parametric ? kParametricKind : 0));
    if (vertex.parametric) append_number(entry, vertex.bytes);
    for (const std::uint32_t input : inputs) append_number(entry, i - input);
  }
  store_little_endian(reinterpret_cast<std::byte*>(entry.data()) + 16,
                      static_cast<std::uint32_t>(entry.size() - kEntryHeadBytes));
  append_digest(entry, plain_xxh3_of(bytes_of(entry.data(), entry.size())));
  return entry;
}

KeptGraphs::KeptGraphs(std::string text) : text_(std::move(text)) {
  const std::string_view all = text_;
  while (all.size() - bytes_ >= kEntryHeadBytes + kSealBytes) {
    const std::string_view rest = all.substr(bytes_);
    const std::size_t graph = load_little_endian<std::uint32_t>(reinterpret_cast<const std::byte*>(rest.data()) + 16);
    if (graph > rest.size() - kEntryHeadBytes - kSealBytes) return;
    const std::size_t sealed = kEntryHeadBytes + graph;
    if (plain_xxh3_of(bytes_of(rest.data(), sealed)) != load_digest(rest.substr(sealed, kSealBytes))) return;
    entries_.insert_or_assign(load_digest(rest.substr(0, 16)), rest.substr(0, sealed + kSealBytes));
    bytes_ += sealed + kSealBytes;
  }
}

std::shared_ptr<const MatchGraph> KeptGraphs::find(const Digest& architecture) const {
  const std::string_view found = entry(architecture);
  if (found.empty()) return nullptr;
  auto parts = decode_graph(found.substr(kEntryHeadBytes, found.size() - kEntryHeadBytes - kSealBytes));
  if (!parts) return nullptr;
  const auto graph = MatchGraph::build(*std::move(parts));
  return graph ? *graph : nullptr;
}

std::string_view KeptGraphs::entry(const Digest& architecture) const {
  const auto found = entries_.find(architecture);
  return found == entries_.end() ? std::string_view() : found->second;
}

}  // namespace freshet
