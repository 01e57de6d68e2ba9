// SPDX-License-Identifier: Apache-2.0
#include "core/json/json_document.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/classic_locale.h"

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

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool key(string_t& name) override {
    open_[depth_ - 1].keys.push_back(std::move(name));
    return true;
  }
  bool end_array() override {
    Level& level = open_[--depth_];
    JsonDocument::array_t elements(std::make_move_iterator(level.values.begin()),
                                   std::make_move_iterator(level.values.end()));
    place(JsonDocument(std::move(elements)));
    return true;
  }
  bool end_object() override {
    Level& level = open_[--depth_];
    if (!check_keys(level.keys)) return false;
    JsonDocument::object_t object;
    // Straight into the vector beneath: the map's own insertion searches all members first.
    auto& members = static_cast<JsonDocument::object_t::Container&>(object);
    members.reserve(level.keys.size());
    for (std::size_t i = 0; i < level.keys.size(); ++i) {
      members.emplace_back(std::move(level.keys[i]), std::move(level.values[i]));
    }
    place(JsonDocument(std::move(object)));
    return true;
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

  bool check_keys(const std::vector<std::string>& keys) {
    std::vector<std::string_view> sorted(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
    return twin == sorted.end() || refuse(format("duplicate key {}", shown(*twin)));
  }

  void place(JsonDocument value) {
    if (depth_ == 0) {
      root_ = std::move(value);
    } else {
      open_[depth_ - 1].values.push_back(std::move(value));
    }
  }

  template <typename Value>
  bool add(Value&& value) {
    if (++values_ > kJsonValuesMax) return refuse(format("more than {} values", kJsonValuesMax));
    place(JsonDocument(std::forward<Value>(value)));
    return true;
  }

  bool open() {
    if (++values_ > kJsonValuesMax) return refuse(format("more than {} values", kJsonValuesMax));
    if (depth_ == kJsonDepthMax) return refuse(format("nested deeper than {} levels", kJsonDepthMax));
    if (open_.size() == depth_) open_.emplace_back();
    open_[depth_].keys.clear();
    open_[depth_].values.clear();
    ++depth_;
    return true;
  }

  /// An open object or array: its members so far. An array has no keys.
  struct Level {
    std::vector<std::string> keys;
    std::vector<JsonDocument> values;
  };

  JsonDocument root_;
  std::vector<Level> open_;  ///< The first depth_ are in use; the others keep their memory for the next one.
  std::size_t depth_ = 0;
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
  const ClassicLocale locale;  // The library's lexer reads a number with the locale's decimal sign, and gives it on so.
  DocumentBuilder builder;
  try {
    if (JsonDocument::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const std::exception& error) {
    return fail(Code::invalid_argument, json_error_text(error.what()));
  }
  return fail(Code::invalid_argument, builder.error());
}

nlohmann::json read_json(std::string_view text) {
  const ClassicLocale locale;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::optional<std::string> text_in(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? std::optional(at->get<std::string>()) : std::nullopt;
}

std::optional<std::uint64_t> count_in(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_unsigned() ? std::optional(at->get<std::uint64_t>()) : std::nullopt;
}

}  // namespace freshet
