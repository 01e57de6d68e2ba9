// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/redis_queries/graph_text.h"

#include <cstring>
#include <nlohmann/json.hpp>

namespace freshet::benchmarks {
namespace {

/// Packed: quality, the number of layers, their ids, then for each layer its number of inputs and these.
std::string pack(const MatchGraph& graph, double quality) {
  std::string out;
  const auto append = [&out](const auto& value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(quality);
  append(static_cast<std::uint32_t>(graph.size()));
  for (const MatchGraph::Vertex& vertex : graph.vertices()) append(vertex.slot.bytes);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    append(static_cast<std::uint32_t>(graph.inputs_of(i).size()));
    for (const std::uint32_t input : graph.inputs_of(i)) append(input);
  }
  return out;
}

Status unpack(std::string_view text, ReadGraph& out) {
  std::uint32_t count = 0;
  if (text.size() < sizeof out.quality + sizeof count) return fail(Code::corrupt, "a packed graph is too short");
  std::memcpy(&out.quality, text.data(), sizeof out.quality);
  std::memcpy(&count, text.data() + sizeof out.quality, sizeof count);
  text.remove_prefix(sizeof out.quality + sizeof count);
  if (text.size() / sizeof(SlotId) < count) return fail(Code::corrupt, "a packed graph is too short");
  out.slots.resize(count);
  if (count != 0) std::memcpy(out.slots.data(), text.data(), count * sizeof(SlotId));
  return {};
}

int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

SlotId slot_of(const std::string& hex) {
  SlotId slot;
  for (std::size_t i = 0; i < slot.bytes.size() && 2 * i + 1 < hex.size(); ++i) {
    slot.bytes[i] = static_cast<std::uint8_t>(16 * digit(hex[2 * i]) + digit(hex[2 * i + 1]));
  }
  return slot;
}

std::string to_json(const MatchGraph& graph, double quality) {
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t i = 0; i < graph.size(); ++i) {
    layers.push_back({{"id", to_hex(graph[i].slot)}, {"inputs", graph.inputs_of(i)}});
  }
  return nlohmann::json{{"quality", quality}, {"layers", std::move(layers)}}.dump();
}

Status from_json(std::string_view text, ReadGraph& out) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    out.quality = json.at("quality").get<double>();
    out.slots.clear();
    for (const auto& layer : json.at("layers"))
      out.slots.push_back(slot_of(layer.at("id").get_ref<const std::string&>()));
  } catch (const nlohmann::json::exception& error) {
    return fail(Code::corrupt, error.what());
  }
  return {};
}

}  // namespace

std::string write_graph(const MatchGraph& graph, double quality, RedisQueries::Form form) {
  return form == RedisQueries::Form::json ? to_json(graph, quality) : pack(graph, quality);
}

Status read_graph(std::string_view text, RedisQueries::Form form, ReadGraph& out) {
  return form == RedisQueries::Form::json ? from_json(text, out) : unpack(text, out);
}

}  // namespace freshet::benchmarks
