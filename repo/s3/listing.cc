// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/listing.h"

#include <expat.h>

#include <charconv>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::s3 {
namespace {

constexpr std::size_t kXmlDepthMax = 16;
constexpr std::size_t kXmlTextBytesMax = 16 << 10;

/// Tells each element's path ("ListBucketResult/Contents/Key") and its text, when the element ends.
class XmlReader {
 public:
  using Each = std::function<void(std::string_view path, std::string_view text)>;

  /// False: the text is no XML, or deeper or longer than any answer of a store.
  static bool read(std::string_view xml, const Each& each) {
    const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate("UTF-8"),
                                                                              &XML_ParserFree);
    if (!parser || xml.size() > std::size_t{64} << 20) return false;
    XmlReader reader(parser.get(), each);
    XML_SetUserData(parser.get(), &reader);
    XML_SetElementHandler(parser.get(), &XmlReader::begin, &XmlReader::end);
    XML_SetCharacterDataHandler(parser.get(), &XmlReader::add);
    // An answer has no document type: without one, no entity can be declared.
    XML_SetStartDoctypeDeclHandler(parser.get(), &XmlReader::begin_type);
    return XML_Parse(parser.get(), xml.data(), static_cast<int>(xml.size()), XML_TRUE) == XML_STATUS_OK;
  }

 private:
  XmlReader(XML_Parser parser, const Each& each) : parser_(parser), each_(each) {}

  static void begin(void* self, const XML_Char* name, const XML_Char**) {
    XmlReader& reader = *static_cast<XmlReader*>(self);
    if (reader.ends_.size() == kXmlDepthMax || std::strlen(name) > kXmlTextBytesMax) return reader.stop();
    reader.ends_.push_back(reader.path_.size());
    if (!reader.path_.empty()) reader.path_ += '/';
    reader.path_ += name;
    reader.text_.clear();
  }
  static void end(void* self, const XML_Char*) {
    XmlReader& reader = *static_cast<XmlReader*>(self);
    reader.each_(reader.path_, reader.text_);
    reader.path_.resize(reader.ends_.back());
    reader.ends_.pop_back();
    reader.text_.clear();
  }
  static void add(void* self, const XML_Char* text, int bytes) {
    XmlReader& reader = *static_cast<XmlReader*>(self);
    if (reader.text_.size() + static_cast<std::size_t>(bytes) > kXmlTextBytesMax) return reader.stop();
    reader.text_.append(text, static_cast<std::size_t>(bytes));
  }
  static void begin_type(void* self, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    static_cast<XmlReader*>(self)->stop();
  }
  void stop() { XML_StopParser(parser_, XML_FALSE); }

  const XML_Parser parser_;
  const Each& each_;
  std::string path_;
  std::vector<std::size_t> ends_;  ///< Lengths of the paths around.
  std::string text_;
};

/// "2013-05-24T00:00:00.000Z".
bool read_iso_date(const std::string& text, std::int64_t& unix_s) {
  std::tm parts{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || text.back() != 'Z') return false;
  unix_s = ::timegm(&parts);
  return true;
}

bool read_count(std::string_view text, std::uint64_t& count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<Listing> parse_listing(std::string_view xml, std::string_view prefix) {
  Listing listing;
  ObjectPage& page = listing.page;
  ListedObject one;
  bool good = true;
  bool has_end = false;  // IsTruncated is always there; without it, the rest of the answer may be missing.
  std::string foreign;
  const bool is_xml = XmlReader::read(xml, [&](std::string_view path, std::string_view text) {
    if (path == "ListBucketResult/IsTruncated") {
      has_end = true;
      page.more = text == "true";
    } else if (path == "ListBucketResult/Contents/Key") {
      if (!text.starts_with(prefix) && foreign.empty()) foreign = text;
      one.key = text.starts_with(prefix) ? text.substr(prefix.size()) : std::string_view();
    } else if (path == "ListBucketResult/Contents/Size") {
      good = good && read_count(text, one.bytes);
    } else if (path == "ListBucketResult/Contents/LastModified") {
      good = good && read_iso_date(std::string(text), one.modified_unix_s);
    } else if (path == "ListBucketResult/Contents") {
      page.objects.push_back(std::exchange(one, {}));
    }
  });
  if (!is_xml || !good || !has_end) {
    return fail(Code::unavailable, "the answer is not a listing: is there a proxy between, or another service?");
  }
  if (!foreign.empty()) {
    return fail(Code::corrupt, format("the listing has \"{}\", which is outside of the question", shown(foreign)));
  }
  for (std::size_t i = 1; i < page.objects.size(); ++i) {
    if (page.objects[i - 1].key < page.objects[i].key) continue;
    return fail(Code::corrupt, format("the listing is not in order: \"{}\" comes after \"{}\"",
                                      shown(page.objects[i].key), shown(page.objects[i - 1].key)));
  }
  if (!page.objects.empty()) listing.last = page.objects.back().key;
  std::erase_if(page.objects,
                [](const ListedObject& object) { return object.key.empty() || object.key.ends_with('/'); });
  return listing;
}

S3Refusal parse_refusal(std::string_view xml) {
  S3Refusal refusal;
  const bool is_xml = XmlReader::read(xml, [&](std::string_view path, std::string_view text) {
    if (path == "Error/Code") refusal.code = shown(text, 64);
    if (path == "Error/Message") refusal.message = shown(text, 256);
    if (path == "Error/Region") refusal.region = shown(text, 64);
  });
  return is_xml ? refusal : S3Refusal{};
}

}  // namespace freshet::s3
