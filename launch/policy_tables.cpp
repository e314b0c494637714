#include "launch/policy_tables.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "common/mapped_file.h"
#include "predictor/hybrid_file.h"
#include "predictor/next_use_file.h"

namespace expertflow {
namespace {

constexpr size_t kTablesBytesMax = size_t{256} << 20;

struct TableKind {
  TablesKind kind;
  const char* option;
  const char* file;  // in the model folder
  // The layers that the file was fitted to.
  Result<std::vector<int32_t>> (*experts)(std::string_view bytes, const std::string& name);
};

template <typename File, Result<File> (*kDecode)(std::string_view, const std::string&)>
Result<std::vector<int32_t>> ExpertsOf(std::string_view bytes, const std::string& name) {
  ASSIGN_OR_RETURN(const File file, kDecode(bytes, name));
  return file.model.experts;
}

constexpr TableKind kTableKinds[] = {
    {TablesKind::kForecaster, "forecaster", kForecasterFileName,
     ExpertsOf<NextUseFile, DecodeNextUse>},
    {TablesKind::kPredictor, "predictor", kPredictorFileName, ExpertsOf<HybridFile, DecodeHybrid>},
};

Result<std::optional<PublishTables>> Load(const TableKind& kind, const Options& options,
                                          const ModelSource& model) {
  std::optional<PublishTables> none;
  const std::string choice = options.Text(kind.option);
  if (choice == "off") return none;
  PublishTables tables;
  tables.kind = kind.kind;
  tables.required = choice != "auto";
  tables.name = tables.required ? choice : model.folder + "/" + kind.file;
  std::error_code error;
  if (!tables.required && !std::filesystem::exists(tables.name, error)) return none;
  const auto named = [&](const Status& status) {
    return status.WithContext(
        tables.required ? options.Origin(kind.option)
                        : fmt::format("beside the model (--{} off goes without)", kind.option));
  };
  Result<std::string> bytes = ReadFileToString(tables.name, kTablesBytesMax);
  if (!bytes.ok()) return named(bytes.status());
  const Result<std::vector<int32_t>> fitted = kind.experts(*bytes, tables.name);
  if (!fitted.ok()) return named(fitted.status());
  const ModelShape& shape = model.architecture->shape();
  const std::vector<int32_t> experts(shape.moe_layers.size(), shape.experts);
  if (*fitted != experts) {
    return named(InvalidArgument(fmt::format(
        "{}: fitted to {} layers with experts, the model has {} of {} experts; train one for it",
        tables.name, fitted->size(), experts.size(), shape.experts)));
  }
  tables.bytes = std::move(*bytes);
  return std::optional<PublishTables>(std::move(tables));
}

}  // namespace

Result<std::vector<PublishTables>> LoadPolicyTables(const Options& options,
                                                    const ModelSource& model) {
  std::vector<PublishTables> all;
  ASSIGN_OR_RETURN(const bool in_place, ComputesInPlace(options));
  if (in_place) return all;
  for (const TableKind& kind : kTableKinds) {
    ASSIGN_OR_RETURN(std::optional<PublishTables> tables, Load(kind, options, model));
    if (tables) all.push_back(std::move(*tables));
  }
  return all;
}

}  // namespace expertflow
