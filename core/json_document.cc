#include "core/json_document.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/text.h"

namespace freshet {
namespace {

/// Builds the document from the parser's events. The parser itself keeps a stack of its own and does not recurse.
class DocumentBuilder : public nlohmann::json_sax<JsonDocument> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& literal) override {
    if (literal.find_first_of(".eE") == std::string::npos) return add(literal);
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }

  bool start_object(std::size_t) override { return open(JsonDocument::object()); }
  bool start_array(std::size_t) override { return open(JsonDocument::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    const auto& members = open_.back()->get_ref<const JsonDocument::object_t&>();
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) return refuse(format("duplicate key {}", shown(*twin)));
    return close();
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return refuse(json_error_text(error.what()));
  }

  const std::string& error() const { return error_; }
  JsonDocument take() { return std::move(root_); }

 private:
  bool refuse(std::string reason) {
    if (error_.empty()) error_ = std::move(reason);
    return false;
  }

  JsonDocument* place(JsonDocument value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    JsonDocument& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Straight into the vector beneath: the map's own insertion searches all members first.
    auto& members = static_cast<JsonDocument::object_t::Container&>(parent.get_ref<JsonDocument::object_t&>());
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  template <typename Value>
  bool add(Value&& value) {
    if (++values_ > kJsonValuesMax) return refuse(format("more than {} values", kJsonValuesMax));
    place(JsonDocument(std::forward<Value>(value)));
    return true;
  }

  bool open(JsonDocument value) {
    if (++values_ > kJsonValuesMax) return refuse(format("more than {} values", kJsonValuesMax));
    if (open_.size() == kJsonDepthMax) return refuse(format("nested deeper than {} levels", kJsonDepthMax));
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  JsonDocument root_;
  std::vector<JsonDocument*> open_;
  std::string key_;
  std::size_t values_ = 0;
  std::string error_;
};

}  // namespace

std::string json_error_text(const char* what) {
  std::string_view text(what);
  const std::size_t prefix = text.find("] ");
  if (prefix != std::string_view::npos) text.remove_prefix(prefix + 2);
  return shown(text);
}

Result<JsonDocument> parse_json(std::string_view text) {
  DocumentBuilder builder;
  try {
    if (JsonDocument::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const std::exception& error) {
    return fail(Code::invalid_argument, json_error_text(error.what()));
  }
  return fail(Code::invalid_argument, builder.error());
}

}  // namespace freshet
