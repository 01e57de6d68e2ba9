// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_drawing.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/lineage/lineage_layout.h"

namespace freshet {
namespace {

constexpr std::size_t kNamedMax = 150;
constexpr double kMargin = 24;
constexpr double kLegendHeight = 44;
constexpr double kCharacterWidth = 6.2;  // Of 11 px sans-serif, on average.

std::string quality_text(const LineageRow& row) { return row.quality ? format("{:.4g}", *row.quality) : ""; }

std::string escaped_xml(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text, "\n")) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\n': escaped += "&#10;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string quoted_dot(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : printable(text, "\n")) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string described(const LineageRow& row) {
  std::string text = to_string(row.version);
  if (row.quality) text += format("\nquality {}", *row.quality);
  text += format("\nown {} bytes, inherited {}", row.own_bytes, row.inherited_bytes);
  if (row.ancestor.number != 0) text += "\nfrom " + to_string(row.ancestor);
  if (row.retired) text += "\nretired";
  return text;
}

bool is_ringed(const LineageRow& row, std::size_t at, const LineageDrawing& drawing,
               const std::optional<QualityRange>& range) {
  return drawing.best.model.empty() ? range && range->best == at : row.version == drawing.best;
}

/// Places in pixels, and what depends on how many versions there are.
class Canvas {
 public:
  Canvas(std::span<const LineageRow> rows, const LineageLayout& layout) : layout_(layout) {
    named_ = rows.size() <= kNamedMax;
    std::size_t longest = 0;
    for (const LineageRow& row : rows) longest = std::max(longest, label(row).size());
    column_ = named_ ? 44 + kCharacterWidth * static_cast<double>(longest) : 30;
    line_ = named_ ? 24 : 12;
    radius_ = named_ ? 6 : 4;
  }

  static std::string label(const LineageRow& row) {
    const std::string quality = quality_text(row);
    return to_string(row.version) + (quality.empty() ? "" : "  " + quality);
  }
  bool named() const { return named_; }
  double radius() const { return radius_; }
  double x(std::size_t row) const { return kMargin + radius_ + column_ * layout_.column[row]; }
  double y(std::size_t row) const { return kLegendHeight + kMargin + line_ * layout_.line[row]; }
  double width() const { return std::max(2 * kMargin + column_ * std::max(layout_.columns, 1U), 360.0); }
  double height() const { return kLegendHeight + 2 * kMargin + line_ * static_cast<double>(layout_.lines); }

 private:
  const LineageLayout& layout_;
  bool named_ = true;
  double column_ = 0;
  double line_ = 0;
  double radius_ = 0;
};

std::string svg_edge(const Canvas& canvas, std::size_t from, std::size_t to) {
  const double middle = (canvas.x(from) + canvas.x(to)) / 2;
  return format("<path d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\"/>\n", canvas.x(from),
                canvas.y(from), middle, canvas.y(from), middle, canvas.y(to), canvas.x(to), canvas.y(to));
}

std::string svg_node(const Canvas& canvas, std::size_t at, const LineageRow& row, const std::string& colour,
                     bool is_best) {
  std::string text =
      format("<g{}><title>{}</title>", row.retired ? " class=\"retired\"" : "", escaped_xml(described(row)));
  if (is_best) {
    text += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"best\"/>", canvas.x(at), canvas.y(at),
                   canvas.radius() + 4);
  }
  text += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\"/>", canvas.x(at), canvas.y(at),
                 canvas.radius(), colour);
  if (canvas.named()) {
    // Above the edge that leads on to the right.
    text += format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", canvas.x(at) + canvas.radius() + 4, canvas.y(at) - 3,
                   escaped_xml(Canvas::label(row)));
  }
  return text + "</g>\n";
}

std::string svg_legend(const LineageDrawing& drawing, std::size_t versions, const std::optional<QualityRange>& range) {
  std::string text = format("<text x=\"{}\" y=\"20\" class=\"title\">{}</text>\n", kMargin,
                            escaped_xml(drawing.title.empty() ? format("{} versions", versions)
                                                              : format("{}: {} versions", drawing.title, versions)));
  if (!range) return text;
  text += "<defs><linearGradient id=\"quality\">";
  for (int i = 0; i <= 4; ++i) text += format("<stop offset=\"{}%\" stop-color=\"{}\"/>", 25 * i, colour_at(0.25 * i));
  text += "</linearGradient></defs>";
  return text + format(
                    "<text x=\"{}\" y=\"40\">quality {:.4g}</text>"
                    "<rect x=\"{}\" y=\"31\" width=\"90\" height=\"10\" fill=\"url(#quality)\"/>"
                    "<text x=\"{}\" y=\"40\">{:.4g}</text>\n",
                    kMargin, range->least, kMargin + 110, kMargin + 206, range->greatest);
}

}  // namespace

std::string lineage_svg(std::span<const LineageRow> rows, const LineageDrawing& drawing) {
  const LineageLayout layout = layout_of(rows);
  const std::optional<QualityRange> range = quality_range(rows);
  const Canvas canvas(rows, layout);
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n"
      "<style>text{{font:11px "
      "sans-serif;fill:#222;stroke:#fff;stroke-width:3px;paint-order:stroke}}.title{{font-weight:bold}}path{{fill:none;"
      "stroke:#9a9a9a}}"
      ".stub{{stroke-dasharray:1 3}}circle{{stroke:#333}}.retired circle{{stroke-dasharray:2 2;fill-opacity:.45}}"
      ".retired text{{fill:#888}}.best{{fill:none;stroke:#c22;stroke-width:2}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      canvas.width(), canvas.height());
  svg += svg_legend(drawing, rows.size(), range);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (layout.parent[i] != LineageLayout::kNone) {
      svg += svg_edge(canvas, layout.parent[i], i);
    } else if (rows[i].ancestor.number != 0) {
      svg += format("<path class=\"stub\" d=\"M{:.1f} {:.1f}h-{}\"/>\n", canvas.x(i), canvas.y(i), kMargin);
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    svg += svg_node(canvas, i, rows[i], quality_colour(rows[i].quality, range), is_ringed(rows[i], i, drawing, range));
  }
  return svg + "</svg>\n";
}

std::string lineage_dot(std::span<const LineageRow> rows, const LineageDrawing& drawing) {
  const LineageLayout layout = layout_of(rows);
  const std::optional<QualityRange> range = quality_range(rows);
  std::string dot = format(
      "digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=\"filled,rounded\", fontname=\"sans-serif\", "
      "fontsize=10];\n",
      quoted_dot(drawing.title.empty() ? "lineage" : drawing.title));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LineageRow& row = rows[i];
    const std::string colour = quality_colour(row.quality, range);
    const std::string quality = quality_text(row);
    // On the darker half of the colours black could not be read.
    const bool is_dark = row.quality && range && range->greatest > range->least &&
                         (*row.quality - range->least) / (range->greatest - range->least) < 0.5;
    dot +=
        format("  n{} [label={}, tooltip={}, fillcolor=\"{}\"{}{}{}];\n", i,
               quoted_dot(to_string(row.version) + (quality.empty() ? "" : "\n" + quality)), quoted_dot(described(row)),
               colour, is_dark ? ", fontcolor=\"white\"" : "", row.retired ? ", style=\"filled,rounded,dashed\"" : "",
               is_ringed(row, i, drawing, range) ? ", color=\"#cc2222\", penwidth=2" : "");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (layout.parent[i] != LineageLayout::kNone) {
      dot += format("  n{} -> n{};\n", layout.parent[i], i);
    } else if (rows[i].ancestor.number != 0) {
      dot += format("  a{0} [label={1}, style=dotted, shape=plaintext];\n  a{0} -> n{0} [style=dotted];\n", i,
                    quoted_dot(to_string(rows[i].ancestor)));
    }
  }
  return dot + "}\n";
}

Result<std::vector<LineageRow>> all_versions(const Repository& repository) {
  FRESHET_ASSIGN(const std::vector<std::string> models, repository.models());
  std::vector<LineageRow> rows;
  for (const std::string& model : models) {
    Result<std::vector<LineageRow>> versions = repository.versions(model);
    if (!versions) {
      if (versions.error().code() == Code::not_found) continue;  // Gone since the models were listed.
      return fail(std::move(versions).error());
    }
    rows.insert(rows.end(), std::make_move_iterator(versions->begin()), std::make_move_iterator(versions->end()));
  }
  return rows;
}

}  // namespace freshet
