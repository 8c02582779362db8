"""Which messages does an HLO module consist of? The fields of XLA's ``hlo.proto`` and ``xla_data.proto`` that are read here.

Numbers are those of openxla/xla (``xla/service/hlo.proto``, ``xla/xla_data.proto``); the two newest forms of replica groups (fields 92 and 93
of an instruction) as jaxlib 0.10 writes them. XLA keeps numbers when it renames or adds fields, so that older and newer files are read too.
"""

from __future__ import annotations

from typing import Any, Final

from trnprof.tracer.protobuf import message_classes

_MESSAGES: Final = {
    "Shape": "2 int64 element_type; 3 *int64 dimensions; 4 *Shape tuple_shapes",
    "Metadata": "2 string op_name; 3 string source_file; 4 int64 source_line; 15 int64 stack_frame_id",
    "Literal": """1 Shape shape; 2 *int64 preds; 4 *int64 s32s; 5 *int64 s64s; 6 *int64 u32s; 7 *int64 u64s;
        15 bytes s8s; 3 bytes u8s""",
    "WindowDimension": """1 int64 size; 2 int64 stride; 3 int64 padding_low; 4 int64 padding_high; 5 int64 window_dilation;
        6 int64 base_dilation""",
    "Window": "1 *WindowDimension dimensions",
    "Convolution": """7 int64 input_batch; 8 int64 input_feature; 11 *int64 input_spatial; 3 int64 kernel_input;
        4 int64 kernel_output; 6 *int64 kernel_spatial; 9 int64 output_batch; 10 int64 output_feature; 12 *int64 output_spatial""",
    "Dot": "1 *int64 lhs_contracting; 2 *int64 rhs_contracting; 3 *int64 lhs_batch; 4 *int64 rhs_batch",
    "ReplicaGroup": "1 *int64 replica_ids",
    "IotaGroups": "1 int64 groups; 2 int64 group_size; 3 *int64 reshape_dims; 4 *int64 transpose_perm",
    "DeviceList": "1 *ReplicaGroup replica_groups; 2 IotaGroups iota",
    "MeshAxis": "1 string name; 2 int64 size",
    "Mesh": "1 *MeshAxis axes; 2 *int64 device_ids",
    "SubAxis": "1 int64 pre_size; 2 int64 size",
    "AxisRef": "1 int64 axis; 2 SubAxis sub_axis",
    "MeshGroups": "1 Mesh mesh; 2 *AxisRef axes",
    "SliceDimension": "1 int64 start; 2 int64 limit; 3 int64 stride",
    "SourceTarget": "1 int64 source; 2 int64 target",
    "Instruction": """1 string name; 2 string opcode; 3 Shape shape; 7 Metadata metadata; 8 Literal literal; 9 int64 parameter_number;
        13 int64 tuple_index; 14 *int64 dimensions; 15 Window window; 16 Convolution convolution; 17 *SliceDimension slices;
        20 *int64 dynamic_slice_sizes; 26 int64 channel_id; 28 string custom_call_target; 30 Dot dot; 34 *int64 gather_slice_sizes; 35 int64 id;
        36 *int64 operand_ids; 38 *int64 called_ids; 43 bytes backend_config; 49 *ReplicaGroup replica_groups;
        50 int64 feature_group_count; 52 *SourceTarget source_target_pairs; 58 int64 batch_group_count; 63 string comparison_direction;
        71 int64 use_global_device_ids; 87 DeviceList device_list; 92 IotaGroups iota_groups; 93 MeshGroups mesh_groups""",
    "Computation": "1 string name; 2 *Instruction instructions; 5 int64 id; 6 int64 root_id",
    "AliasEntry": "1 *int64 output_index; 2 int64 parameter_number; 3 *int64 parameter_index",
    "Aliases": "1 *AliasEntry entries",
    "Donor": "1 int64 parameter_number",
    "Donors": "1 *Donor entries",
    "FileLocation": "1 int64 file_name_id; 3 int64 line",
    "StackFrame": "1 int64 file_location_id",
    "StackFrames": "1 *string file_names; 3 *FileLocation locations; 4 *StackFrame frames",
    "Module": """1 string name; 3 *Computation computations; 6 int64 entry_id; 8 Aliases aliases; 17 StackFrames stack_frames; 18 Donors donors""",
    "Hlo": "1 Module module",
}
_classes = message_classes("trnprof.hlo", _MESSAGES)
HLO: Final[Any] = _classes["Hlo"]
MODULE: Final[Any] = _classes["Module"]
