// SPDX-License-Identifier: Apache-2.0
#include <flatbuffers/flatbuffers.h>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/model/graph_parts.h"
#include "core/model/manifest_generated.h"
#include "core/model/proved_forms.h"
#include "core/model/sealed_buffer.h"

namespace freshet {
namespace {

constexpr char kGraphIdentifier[] = "FRAR";
constexpr std::string_view kGraphWhat = "an encoded architecture";
/// Tensors, their slices, layers and layers' tensors, each as many as the limits allow and some more, so that a count
/// over a limit is told as such.
constexpr std::uint32_t kGraphTablesMax = 6'000'000;

template <typename Table>
using Offsets = std::vector<flatbuffers::Offset<Table>>;

class Encoder {
 public:
  std::vector<std::byte> encode(const Architecture::Parts& parts) {
    const auto name = builder_.CreateString(parts.name);
    Offsets<fbs::Tensor> tensors;
    for (const TensorSpec& spec : parts.tensors) tensors.push_back(add(spec));
    Offsets<fbs::Layer> layers;
    for (const Layer& layer : parts.layers) layers.push_back(add(layer));
    const auto tensor_vector = builder_.CreateVector(tensors);
    const auto layer_vector = builder_.CreateVector(layers);
    const auto outputs = add(parts.outputs);
    const auto framework_config = add(parts.framework_config);
    const auto extra = add(parts.extra);
    builder_.Finish(fbs::CreateArchitecture(builder_, kFormatVersion, name, tensor_vector, layer_vector, outputs,
                                            framework_config, extra, parts.guessed),
                    kGraphIdentifier);
    return seal(builder_);
  }

 private:
  flatbuffers::Offset<flatbuffers::String> add(const std::string& text) {
    return text.empty() ? 0 : builder_.CreateString(text);
  }

  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> add(const Shape& shape) {
    return builder_.CreateVector(shape);
  }

  flatbuffers::Offset<flatbuffers::Vector<const fbs::LayerInput*>> add(const std::vector<LayerInput>& inputs) {
    std::vector<fbs::LayerInput> structs;
    for (const LayerInput& input : inputs) structs.emplace_back(input.layer, input.port);
    return builder_.CreateVectorOfStructs(structs);
  }

  flatbuffers::Offset<fbs::Tensor> add(const TensorSpec& spec) {
    flatbuffers::Offset<fbs::Slice> slice = 0;
    if (spec.slice) {
      const auto global_shape = add(spec.slice->global_shape);
      const auto offset = add(spec.slice->offset);
      slice = fbs::CreateSlice(builder_, global_shape, offset, spec.slice->parts);
    }
    const auto name = builder_.CreateString(spec.name);
    const auto shape = add(spec.shape);
    return fbs::CreateTensor(builder_, name, static_cast<std::uint8_t>(spec.dtype),
                             static_cast<std::uint8_t>(spec.role), shape, slice);
  }

  flatbuffers::Offset<fbs::Layer> add(const Layer& layer) {
    Offsets<fbs::LayerTensor> tensors;
    for (const LayerTensor& tensor : layer.tensors) {
      const auto tensor_name = builder_.CreateString(tensor.name);
      tensors.push_back(fbs::CreateLayerTensor(builder_, tensor_name, tensor.tensor));
    }
    const auto name = builder_.CreateString(layer.name);
    const auto class_name = builder_.CreateString(layer.class_name);
    const auto config = builder_.CreateString(layer.config);
    const auto framework_config = add(layer.framework_config);
    const auto inputs = add(layer.inputs);
    const auto tensor_vector = builder_.CreateVector(tensors);
    flatbuffers::Optional<std::uint32_t> tensors_of = flatbuffers::nullopt;
    if (layer.tensors_of) tensors_of = *layer.tensors_of;
    return fbs::CreateLayer(builder_, name, class_name, config, framework_config, inputs, tensor_vector, tensors_of,
                            layer.commutative);
  }

  flatbuffers::FlatBufferBuilder builder_;
};

tl::unexpected<Error> corrupt_graph(std::string reason) {
  return fail(Code::corrupt, format("{}: {}", kGraphWhat, reason));
}

/// Copies verified tables into parts. What the parts mean is checked afterwards.
class Decoder {
 public:
  explicit Decoder(std::size_t bytes) : budget_(bytes) {}

  Result<Architecture::Parts> decode(const fbs::Architecture& table) {
    const std::size_t tensors = table.tensors() ? table.tensors()->size() : 0;
    const std::size_t layers = table.layers() ? table.layers()->size() : 0;
    if (tensors > kTensorsMax) return corrupt_graph(format("{} tensors, over the limit of {}", tensors, kTensorsMax));
    if (layers > kLayersMax) return corrupt_graph(format("{} layers, over the limit of {}", layers, kLayersMax));
    Architecture::Parts parts{.guessed = table.guessed()};
    FRESHET_TRY(copy(table.name(), parts.name));
    FRESHET_TRY(copy(table.framework_config(), parts.framework_config));
    FRESHET_TRY(copy(table.extra(), parts.extra));
    FRESHET_TRY(copy(table.outputs(), parts.outputs));
    parts.tensors.resize(tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
      FRESHET_TRY(decode(*table.tensors()->Get(static_cast<std::uint32_t>(i)), parts.tensors[i]));
    }
    parts.layers.resize(layers);
    for (std::size_t i = 0; i < layers; ++i) {
      FRESHET_TRY(decode(*table.layers()->Get(static_cast<std::uint32_t>(i)), parts.layers[i]));
    }
    return parts;
  }

 private:
  Status spend(std::size_t bytes) {
    if (budget_.spend(bytes)) return {};
    return corrupt_graph("its fields share bytes");
  }

  Status copy(const flatbuffers::String* from, std::string& to) {
    if (from == nullptr) return {};
    FRESHET_TRY(spend(from->size()));
    to.assign(from->c_str(), from->size());
    return {};
  }

  Status copy(const flatbuffers::Vector<std::uint64_t>* from, Shape& to) {
    if (from == nullptr) return {};
    if (!has_aligned_elements(from)) return corrupt_graph("a shape is not aligned");
    FRESHET_TRY(spend(from->size() * sizeof(std::uint64_t)));
    to.assign(from->begin(), from->end());
    return {};
  }

  Status copy(const flatbuffers::Vector<const fbs::LayerInput*>* from, std::vector<LayerInput>& to) {
    if (from == nullptr) return {};
    FRESHET_TRY(spend(from->size() * sizeof(fbs::LayerInput)));
    to.reserve(from->size());
    for (const fbs::LayerInput* input : *from) to.push_back({.layer = input->layer(), .port = input->port()});
    return {};
  }

  Status decode(const fbs::Tensor& table, TensorSpec& spec) {
    FRESHET_TRY(copy(table.name(), spec.name));
    FRESHET_TRY(copy(table.shape(), spec.shape));
    if (table.dtype() >= kDTypeCount) {
      return fail(Code::unsupported, format("{}: tensor {} has dtype {}, which a newer Freshet may know", kGraphWhat,
                                            shown(spec.name), table.dtype()));
    }
    if (table.role() > static_cast<std::uint8_t>(Role::opaque))
      return corrupt_graph(format("unknown role {}", table.role()));
    spec.dtype = static_cast<DType>(table.dtype());
    spec.role = static_cast<Role>(table.role());
    if (table.slice() == nullptr) return {};
    spec.slice.emplace();
    spec.slice->parts = table.slice()->parts();
    FRESHET_TRY(copy(table.slice()->global_shape(), spec.slice->global_shape));
    return copy(table.slice()->offset(), spec.slice->offset);
  }

  Status decode(const fbs::Layer& table, Layer& layer) {
    FRESHET_TRY(copy(table.name(), layer.name));
    FRESHET_TRY(copy(table.class_name(), layer.class_name));
    FRESHET_TRY(copy(table.framework_config(), layer.framework_config));
    FRESHET_TRY(copy(table.inputs(), layer.inputs));
    layer.config.clear();
    FRESHET_TRY(copy(table.config(), layer.config));
    layer.commutative = table.commutative();
    if (table.tensors_of()) layer.tensors_of = *table.tensors_of();
    if (table.tensors() == nullptr) return {};
    for (const fbs::LayerTensor* entry : *table.tensors()) {
      LayerTensor tensor{.tensor = entry->tensor()};
      FRESHET_TRY(spend(sizeof(std::uint32_t)));
      FRESHET_TRY(copy(entry->name(), tensor.name));
      layer.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  DecodeBudget budget_;
};

/// The fields that check_and_normalize may change; equal before and after means that the encoder was one of ours.
bool is_normal(const Architecture::Parts& before, const Architecture::Parts& after) {
  return before.extra == after.extra && before.layers == after.layers;
}

}  // namespace

std::vector<std::byte> encode_architecture(const Architecture::Parts& parts) { return Encoder().encode(parts); }

Result<Architecture::Parts> decode_architecture_parts(Bytes bytes) {
  FRESHET_ASSIGN(const OpenedBuffer opened, OpenedBuffer::open(kGraphWhat, bytes, kArchitectureBytesMax));
  FRESHET_ASSIGN(const fbs::Architecture* table,
                 opened.root<fbs::Architecture>(kGraphWhat, kGraphIdentifier, kGraphTablesMax));
  return Decoder(opened.content().size()).decode(*table);
}

Result<std::shared_ptr<const Architecture>> decode_architecture(Bytes bytes) {
  FRESHET_ASSIGN(Architecture::Parts parts, decode_architecture_parts(bytes));
  Architecture::Parts checked = parts;
  if (Status status = check_and_normalize(checked); !status)
    return fail(as_corrupt(std::move(status).error(), kGraphWhat));
  if (!is_normal(parts, checked)) return corrupt_graph("a config or a tensors_of is not in its canonical form");
  return ArchitectureBuilder::assemble(std::move(checked), std::vector<std::byte>(bytes.begin(), bytes.end()));
}

}  // namespace freshet
