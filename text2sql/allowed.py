"""What a statement may be made of: nodes of the parsed tree, functions, types. What is not listed is refused.

The names of the node lists are sqlglot's. A function that sqlglot knows is one of its classes whatever it is called in
the text; one that it does not know is judged by its name, each dialect by a list of its own.
"""

NODES = frozenset(
    """
    Select SetOperation Union Intersect Except Subquery From Join Where Group Having Order Ordered Limit Offset Fetch
    Distinct With CTE Table TableAlias Alias Column Identifier Star Literal Boolean Null Values Tuple Lateral Paren Not
    Neg And Or Xor EQ NEQ GT GTE LT LTE NullSafeEQ NullSafeNEQ Is In Between Like ILike Glob Escape Any All Exists
    RegexpLike RegexpILike SimilarTo Add Sub Mul Div IntDiv Mod DPipe Collate BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    BitwiseLeftShift BitwiseRightShift DataType DataTypeParam Var Interval IntervalSpan AtTimeZone HexString BitString
    ByteString National Introducer Rollup Cube GroupingSets Window WindowSpec Filter WithinGroup IgnoreNulls
    RespectNulls Aliases Bracket Slice JSONPath JSONPathRoot JSONPathKey JSONPathSubscript JSONPathWildcard JSONSchema
    JSONColumnDef JSONKeyValue JSONValue Overlaps Kwarg LimitOptions
    """.split()
)

FUNCTIONS = frozenset(
    """
    Abs Acos AddMonths AnyValue Array ArrayAgg ArrayAppend ArrayConcat ArrayContains ArrayContainsAll ArrayOverlaps
    ArrayPosition ArrayPrepend ArrayRemove ArraySize ArrayToString Ascii Asin Atan Atan2 Avg BitLength BitwiseAndAgg
    BitwiseCount BitwiseOrAgg BitwiseXorAgg Case Cast Cbrt Ceil Chr Coalesce Concat ConcatWs Convert ConvertToCharset
    Corr Cos Cot Count CountIf CovarPop CovarSamp CumeDist CurrentDate CurrentDatetime CurrentTime CurrentTimestamp Date
    DateAdd DateBin DateDiff DateFromParts DateStrToDate DateSub DateToDateStr DateTrunc Datetime DatetimeAdd
    DatetimeDiff DatetimeSub DatetimeTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode Degrees
    DenseRank Elt Encode EndsWith Exp Explode ExplodingGenerateSeries Extract Factorial First FirstValue Floor Format
    FromBase64 GenerateSeries Greatest GroupConcat Grouping Hex Hour If Initcap IsInf IsNan JSONArray JSONArrayAgg
    JSONArrayContains JSONBContains JSONBContainsAllTopKeys JSONBContainsAnyTopKeys JSONBContainsTopKey JSONBExtract
    JSONBExtractScalar JSONBObjectAgg JSONExists JSONExtract JSONExtractArray JSONExtractScalar JSONFormat JSONKeys
    JSONObject JSONObjectAgg JSONTable JSONType JustifyDays JustifyHours JustifyInterval Lag Last LastDay LastValue Lead
    Least Left Length Levenshtein Ln Localtime Localtimestamp Log LogicalAnd LogicalOr Lower LowerHex MD5 MakeInterval
    MatchAgainst Max Median Min Minute Mode Month Monthname MonthsBetween NthValue Ntile Nullif NumberToStr Overlay Pad
    ParseJSON PercentRank PercentileCont PercentileDisc Pi Pow Quarter Radians Rand Rank RegexpCount RegexpExtract
    RegexpExtractAll RegexpInstr RegexpReplace RegexpSplit RegexpSubstr RegrAvgx RegrAvgy RegrCount RegrIntercept RegrR2
    RegrSlope RegrSxx RegrSxy RegrSyy Repeat Replace Reverse Right Round RowNumber SHA SHA2 Second Sign Sin Soundex
    Space Split SplitPart Sqrt StartsWith Stddev StddevPop StddevSamp Stuff StrPosition StrToDate StrToTime StrToUnix
    StringToArray StDistance StPoint Substring SubstringIndex Sum Tan Time TimeAdd TimeDiff TimeFromParts TimeStrToDate
    TimeStrToTime TimeStrToUnix TimeSub TimeToStr TimeToTimeStr TimeToUnix TimeTrunc Timestamp TimestampAdd
    TimestampDiff TimestampFromParts TimestampSub TimestampTrunc ToBase64 ToChar ToDays ToNumber Translate Trim Trunc
    TryCast TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToDateStr TsOrDsToDatetime TsOrDsToTime TsOrDsToTimestamp Typeof
    Unhex Unicode UnixDate UnixMicros UnixMillis UnixSeconds UnixToStr UnixToTime UnixToTimeStr Unnest Upper UtcDate
    UtcTime UtcTimestamp Uuid Variance VariancePop Week WeekOfYear WeightString WidthBucket Year YearOfWeek
    YearOfWeekIso
    """.split()
)

NAMED: dict[str, frozenset[str]] = {
    "mysql": frozenset(
        """
        addtime bin bit_count char char_length character_length conv convert_tz crc32 curdate current_date curtime
        date_format datediff dayname dayofyear export_set field find_in_set format from_days from_unixtime get_format
        inet6_aton inet6_ntoa inet_aton inet_ntoa insert instr interval is_ipv4 is_ipv6 is_uuid json_array_length
        json_compact json_contains json_contains_path json_depth json_exists json_length json_merge_patch
        json_merge_preserve json_overlaps json_pretty json_query json_quote json_search json_type json_unquote
        json_valid json_value locate lpad ltrim make_set makedate maketime microsecond mid mod monthname
        natural_sort_key now oct octet_length ord period_add period_diff position quote regexp_instr regexp_like rpad
        rtrim sec_to_time sformat st_area st_asgeojson st_astext st_aswkt st_contains st_distance_sphere st_equals
        st_geomfromtext st_geometryfromtext st_intersects st_latitude st_length st_longitude st_pointfromtext st_srid
        st_within st_x st_y std strcmp subtime sysdate time_format time_to_sec timediff timestamp to_seconds
        uncompressed_length any_value adddate subdate point json_arrayagg json_objectagg unix_timestamp utc_date
        utc_time utc_timestamp uuid_to_bin bin_to_uuid week weekday yearweek json_array json_set json_insert
        json_replace json_remove json_array_append json_array_insert log10 log2 median to_days
        """.split()
    ),
    "postgres": frozenset(
        """
        age array_dims array_length array_lower array_ndims array_replace array_to_json array_upper bit_and bit_or
        bool_and bool_or btrim cardinality clock_timestamp date_part div enum_range every format gcd generate_subscripts
        isfinite json_agg json_array_elements json_array_elements_text json_array_length json_build_array
        json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object_keys
        json_populate_record json_strip_nulls json_typeof jsonb_agg jsonb_array_elements jsonb_array_elements_text
        jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path
        jsonb_extract_path_text jsonb_object_keys jsonb_path_exists jsonb_path_query jsonb_path_query_array
        jsonb_path_query_first jsonb_strip_nulls jsonb_typeof lcm lpad ltrim make_date make_time make_timestamp
        make_timestamptz mod num_nonnulls num_nulls octet_length quote_ident quote_literal quote_nullable regexp_like
        regexp_match regexp_matches regexp_split_to_array regexp_split_to_table row row_to_json rpad rtrim similarity
        statement_timestamp string_to_table strpos timeofday to_date to_hex to_json to_jsonb to_timestamp to_tsquery
        to_tsvector plainto_tsquery transaction_timestamp trim_array trim_scale unistr upper_inf lower_inf
        jsonb_insert jsonb_pretty jsonb_set log10 sha224 sha256 sha384 sha512
        """.split()
    ),
    "sqlite": frozenset(
        """
        char date datetime group_concat ifnull iif instr json json_array json_array_length json_each json_insert
        json_quote json_remove json_replace json_set json_tree json_valid julianday likely log10 log2
        ltrim printf quote rtrim strftime time timediff total unixepoch unlikely zeroblob
        """.split()
    ),
}

TYPES = frozenset(
    """
    BIGINT BIGDECIMAL BINARY BIT BLOB BOOLEAN BPCHAR CHAR DATE DATETIME DECIMAL DOUBLE ENUM FLOAT INET INT INTERVAL JSON
    JSONB LONGBLOB LONGTEXT MEDIUMBLOB MEDIUMINT MEDIUMTEXT MONEY NCHAR NUMERIC NVARCHAR REAL SERIAL SET SMALLINT TEXT
    TIME TIMESTAMP TIMESTAMPLTZ TIMESTAMPNTZ TIMESTAMPTZ TIMETZ TINYBLOB TINYINT TINYTEXT UBIGINT UDECIMAL UDOUBLE UINT
    UMEDIUMINT USMALLINT UTINYINT UUID VARBINARY VARCHAR YEAR ARRAY
    """.split()
)

CHARSETS = frozenset(
    """
    ascii big5 binary euckr gb18030 gb2312 gbk latin1 sjis ucs2 ujis utf16 utf32 utf8 utf8mb3 utf8mb4
    """.split()
)

# The parts that a node may have; another one that is there (INTO, FOR UPDATE, TABLESAMPLE, PARTITION …) is refused.
_MODIFIERS = {"with_", "where", "group", "having", "windows", "order", "limit", "offset", "laterals", "joins"}
PARTS: dict[str, set[str]] = {
    "Select": _MODIFIERS | {"expressions", "distinct", "from_"},
    "Union": _MODIFIERS | {"this", "expression", "distinct"},
    "Intersect": _MODIFIERS | {"this", "expression", "distinct"},
    "Except": _MODIFIERS | {"this", "expression", "distinct"},
    "Subquery": _MODIFIERS | {"this", "alias"},
    "Values": {"expressions", "alias", "order", "limit", "offset"},
    "Table": {"this", "alias", "db", "joins", "laterals", "only", "ordinality"},
    "Join": {"this", "on", "side", "kind", "using", "method"},
    "Lateral": {"this", "alias", "ordinality"},
    "CTE": {"this", "alias", "materialized"},
    "With": {"expressions", "recursive"},
    "TableAlias": {"this", "columns"},
    "Column": {"this", "table", "db", "join_mark"},
    "Star": set(),
    "In": {"this", "expressions", "query", "unnest"},  # not `IN table`
}
